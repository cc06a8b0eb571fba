// What is said while the launcher waits: for others before the job runs, for workers that end.
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/run/launcher.h"
#include "launcher/run/notices.h"

namespace fsdprun {
namespace {

constexpr Duration kWaitNoticeInterval = std::chrono::seconds(5);
constexpr Duration kStopNoticeDelay = std::chrono::seconds(1);

}  // namespace

void Launcher::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kWaitNoticeInterval, [this] {
    PrintWaitNotice();
    ScheduleWaitNotice();
  });
}

// Prints what the launcher is waiting for; nothing once the job runs.
void Launcher::PrintWaitNotice() {
  if (host_ == nullptr) {
    if (!agent_->was_admitted()) {
      Print(absl::StrCat(
          "waiting for the coordinator at ", place_.where(), " (",
          DescribeWait(agent_->machine().connect_deadline(), ConnectTimeout(), MonoNow()),
          "): ", agent_->last_link_error().message()));
    }
    return;
  }
  const JobMachine& job = host_->machine();
  const std::string reason(job.reason());
  if (job.is_pausing()) {
    Print(reason);
  } else if (job.phase() == job::Phase::kRendezvous) {
    const std::string where =
        !place_.is_shared() ? ""
                            : absl::StrCat(" at ", place_.where(), " with run id '", run_id_, "'");
    Print(absl::StrCat(reason, where, " (",
                       DescribeWait(job.join_deadline(), plan_.join_timeout, MonoNow()), ")"));
  }
}

// After every step of the coordinator.
void Launcher::TrackStop() {
  const JobMachine& job = host_->machine();
  if (job.phase() != job::Phase::kStopping) {
    return;
  }
  const std::pair stop(job.generation(), job.operator_signal().has_value());
  if (std::exchange(noticed_stop_, stop) != stop) {
    ScheduleStopNotice();
  }
}

// Tells of a stop only once it takes its time: most workers end at once.
void Launcher::ScheduleStopNotice() {
  loop_.At(MonoNow() + kStopNoticeDelay, [this] {
    if (const auto stop = StopInProgress(); stop.has_value() && IsWorthTelling(*stop, MonoNow())) {
      Print(DescribeStop(*stop, MonoNow()));
    }
  });
}

// Of the whole job where its coordinator is, else of this node alone, and only of an operator's.
std::optional<job::StopStatus> Launcher::StopInProgress() const {
  if (host_ != nullptr) {
    return host_->machine().stop();
  }
  const auto kill_at = agent_ != nullptr ? agent_->machine().kill_at() : std::nullopt;
  if (!kill_at.has_value() || own_signal_ == 0) {
    return std::nullopt;
  }
  const NodeMachine& node = agent_->machine();
  return job::StopStatus{.generation = node.generation(),
                         .operator_signal = own_signal_,
                         .grace = plan_.shutdown_timeout,
                         .kill_at = *kill_at,
                         .left = {{HostName(), node.live_workers()}}};
}

}  // namespace fsdprun
