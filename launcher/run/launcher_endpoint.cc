// A launcher at an endpoint that jobs of several run ids may share: see Note [Several run ids on
// one endpoint].

#include <chrono>
#include <optional>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/log.h"
#include "launcher/run/launcher.h"

namespace fsdprun {
namespace {

/// Between two looks for another place while the coordinator does not answer.
constexpr Duration kLookInterval = std::chrono::milliseconds(500);
/// Between two steps to keep a hosted coordinator known.
constexpr Duration kTendInterval = std::chrono::milliseconds(100);

}  // namespace

void Launcher::WatchPlace() {
  loop_.Cancel(place_timer_);
  if (host_ != nullptr && directory_->needs_tending()) {
    place_timer_ = loop_.At(MonoNow() + kTendInterval, [this] {
      TendPlace();
      WatchPlace();
    });
  } else if (host_ == nullptr && !agent_->was_admitted()) {
    place_timer_ = loop_.At(MonoNow() + kLookInterval, [this] {
      LookAgain();
      WatchPlace();
    });
  }
}

// The coordinator to be joined may be gone for ever before it has been reached.
void Launcher::LookAgain() {
  if (is_looking_ || agent_->was_admitted() || agent_exit_.has_value() ||
      !absl::IsUnavailable(agent_->last_link_error())) {
    return;
  }
  absl::StatusOr<std::optional<Place>> place = directory_->LookAgain(place_);
  if (own_signal_ != 0) {
    OnSignal(own_signal_);
  } else if (place.ok() && place->has_value()) {
    MoveTo(**std::move(place));
  } else if (absl::IsFailedPrecondition(place.status())) {
    agent_exit_ = 1;
    agent_message_ = std::string(place.status().message());
    StopWhenDone();
  }
}

void Launcher::TendPlace() {
  Tended tended = directory_->Tend();
  for (UniqueFd& listener : tended.listeners) {
    FSDPRUN_CHECK(port_server_ != nullptr && port_server_->ListenOn(std::move(listener)).ok(),
                  "a host has a server, and the listening socket is bound");
    host_->TakeOver();
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
  absl::StatusOr<Place> place = absl::FailedPreconditionError("other nodes have joined");
  if (host_->is_alone()) {
    place = directory_->Join(where, place_);
  }
  if (place.ok()) {
    Log(LogLevel::kInfo, absl::StrCat("the job with run id '", run_id_, "' is hosted at ",
                                      absl::StrJoin(where, ", "), " already; joining it there"));
    MoveTo(*std::move(place));
  } else if (!std::exchange(has_told_of_other_host_, true)) {
    Log(LogLevel::kWarning,
        absl::StrCat("another launcher, at ", absl::StrJoin(where, ", "),
                     ", hosts a job with run id '", run_id_,
                     "' too, and neither can join the other; end one of the two jobs"));
  }
}

}  // namespace fsdprun
