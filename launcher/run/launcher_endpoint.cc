// A host at an endpoint that jobs of several run ids may share: see Note [Several run ids on one
// endpoint].

#include <chrono>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/log.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// Between two steps to keep a hosted coordinator known.
constexpr Duration kTendInterval = std::chrono::milliseconds(100);

}  // namespace

void Launcher::TendPlace() {
  loop_.Cancel(std::exchange(tend_timer_, 0));
  SharedEndpoint* shared = directory_->shared_endpoint();
  if (host_ == nullptr || shared == nullptr || is_tending_) {
    return;
  }
  is_tending_ = true;
  const auto tended = std::make_shared<Tended>();
  OnDirectory([directory = directory_, shared, tended] { *tended = shared->Tend(); },
              [this, tended] { OnTended(std::move(*tended)); });
}

void Launcher::OnTended(Tended tended) {
  is_tending_ = false;
  if (host_ == nullptr) {
    return;
  }
  for (UniqueFd& listener : tended.listeners) {
    FSDPRUN_CHECK(port_server_ != nullptr && port_server_->ListenOn(std::move(listener)).ok(),
                  "a host has a server, and the listening socket is bound");
    host_->TakeOver();
  }
  if (!tended.is_over) {
    tend_timer_ = loop_.At(MonoNow() + kTendInterval, [this] { TendPlace(); });
  }
  if (!tended.other_host.empty()) {
    OnOtherHost(tended.other_host);
  }
}

// Whoever is alone goes to the other.
void Launcher::OnOtherHost(const std::vector<std::string>& where) {
  if (host_ == nullptr || outcome_.has_value() || own_signal_ != 0) {
    return;
  }
  SharedEndpoint* shared = directory_->shared_endpoint();
  if (shared == nullptr || !host_->is_alone()) {
    TellOfOtherHost(where);
    return;
  }
  if (std::exchange(is_joining_other_host_, true)) {
    return;
  }
  const auto place = std::make_shared<absl::StatusOr<Place>>(absl::UnknownError("not asked"));
  OnDirectory(
      [directory = directory_, shared, where, place,
       token = JobToken{.value = place_.token.value, .advice = place_.token.advice}] {
        *place = shared->PlaceAt(where, token);
      },
      [this, where, place] { OnPlaceOfOther(where, std::move(*place)); });
}

void Launcher::OnPlaceOfOther(const std::vector<std::string>& where, absl::StatusOr<Place> place) {
  is_joining_other_host_ = false;
  if (host_ == nullptr || outcome_.has_value() || own_signal_ != 0) {
    return;
  }
  if (!place.ok() || !host_->is_alone()) {
    TellOfOtherHost(where);
    return;
  }
  Log(LogLevel::kInfo, absl::StrCat("the job with run id '", run_id_, "' is hosted at ",
                                    absl::StrJoin(where, ", "), " already; joining it there"));
  MoveTo(*std::move(place));
  OnDirectory(GivingUp(false), [] {});
}

void Launcher::TellOfOtherHost(const std::vector<std::string>& where) {
  if (!std::exchange(has_told_of_other_host_, true)) {
    Log(LogLevel::kWarning,
        absl::StrCat("another launcher, at ", absl::StrJoin(where, ", "),
                     ", hosts a job with run id '", run_id_,
                     "' too, and neither can join the other; end one of the two jobs"));
  }
}

}  // namespace fsdprun
