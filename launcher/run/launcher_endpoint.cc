// A host at an endpoint that jobs of several run ids may share: see Note [Several run ids on one
// endpoint].

#include <fcntl.h>

#include <chrono>
#include <memory>
#include <utility>

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
  bool is_served = tended.listeners.empty();
  for (UniqueFd& listener : tended.listeners) {
    FSDPRUN_CHECK(port_server_ != nullptr, "a host of several nodes has a server");
    UniqueFd copy(standby_ != nullptr ? ::fcntl(listener.get(), F_DUPFD_CLOEXEC, 0) : -1);
    if (const auto port = port_server_->ListenOn(std::move(listener)); !port.ok()) {
      Log(LogLevel::kWarning,
          absl::StrCat("cannot serve new nodes at the rendezvous endpoint ",
                       ToString(plan_.endpoint), ": ", port.status().message(),
                       "; this job goes on, but nodes that start now do not find it there"));
      continue;
    }
    is_served = true;
    if (standby_ != nullptr) {
      standby_->AddListener(std::move(copy));
    }
    host_->TakeOver();
  }
  if (!is_served) {
    OnDirectory([directory = directory_,
                 shared = directory_->shared_endpoint()] { shared->CannotListen(); },
                [] {});
  }
  if (!tended.is_over || !is_served) {
    tend_timer_ = loop_.At(MonoNow() + kTendInterval, [this] { TendPlace(); });
  }
  if (!tended.other_host.empty()) {
    OnOtherHost({tended.other_host, /*has_endpoint=*/true});
  }
}

void Launcher::OnOtherHost(place::OtherHost other) {
  if (!outcome_.has_value()) {
    StepSearch(std::move(other));
  }
}

void Launcher::Execute(const place::TellOfOther& tell) {
  Log(LogLevel::kWarning,
      absl::StrCat("another launcher, at ", absl::StrJoin(tell.where, ", "),
                   ", hosts a job with run id '", run_id_, "' too, ",
                   tell.replaces
                       ? "and who looks for it is sent there; this job ends before it would start "
                         "workers again"
                       : "and neither can join the other; end one of the two jobs"));
}

}  // namespace fsdprun
