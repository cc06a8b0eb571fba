#include "launcher/chaos/plan/launch_machine.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr int kKilledCode = 128 + SIGKILL;
/// Before one is started again that has ended, as a service manager does it. Twice as long after
/// each quick end.
constexpr Duration kRestartPause = milliseconds(300);
/// Before a start that failed is tried again. Twice as long each time.
constexpr Duration kRetryPause = milliseconds(50);
constexpr Duration kRetryPauseMax = seconds(1);
constexpr int kStartsMax = 10;
/// One that ends so soon has not got as far as the job.
constexpr Duration kQuick = seconds(1);
constexpr int kQuickEndsMax = 5;
/// How long launchers have to end once the job is over, until they are told to.
constexpr Duration kLaunchersPatience = seconds(20);
/// How long what was told to end has, until it is killed.
constexpr Duration kGrace = seconds(60);
/// How long a command has for what it does about a signal, until its group gets it, too.
constexpr Duration kGroupPatience = seconds(10);
/// A process that cannot be killed waits for a device or a file system.
constexpr Duration kKillPatience = seconds(10);

/// `pause`, doubled so often.
Duration Doubled(Duration pause, int times, Duration most) {
  for (int i = 0; i < times && pause < most; ++i) {
    pause *= 2;
  }
  return std::min(pause, most);
}

}  // namespace

LaunchMachine::LaunchMachine(Form form, const std::vector<std::string>& names) : form_(form) {
  for (const std::string& name : names) {
    launches_.push_back({.name = name});
  }
}

bool LaunchMachine::HaveAllEnded() const {
  return std::all_of(launches_.begin(), launches_.end(),
                     [](const Launch& launch) { return launch.phase == Phase::kEnded; });
}

void LaunchMachine::OnStarted(size_t index, MonoTime now) {
  Launch& launch = launches_[index];
  launch.phase = Phase::kRunning;
  launch.started_at = now;
  launch.has_run = true;
  launch.failed_starts = 0;
}

void LaunchMachine::StartAgain(Launch& launch, MonoTime at) {
  launch.phase = Phase::kWaiting;
  launch.due_at = at;
}

// What has run before is there, or is being built anew.
void LaunchMachine::OnCannotStart(size_t index, MonoTime now, const absl::Status& why) {
  Launch& launch = launches_[index];
  launch.phase = Phase::kEnded;
  if (IsEnding()) {
    if (index == 0) {
      EndFirst(now, kKilledCode);
    }
    return;
  }
  const bool may_pass = absl::IsUnavailable(why) || launch.has_run;
  if (may_pass && ++launch.failed_starts < kStartsMax) {
    StartAgain(launch, now + Doubled(kRetryPause, launch.failed_starts - 1, kRetryPauseMax));
    return;
  }
  const std::string attempts =
      launch.failed_starts > 1 ? absl::StrCat(", in ", launch.failed_starts, " attempts") : "";
  GiveUp(now, absl::StrCat(launch.name, " could not be started", launch.has_run ? " again" : "",
                           attempts, ": ", absl::string_view(why.message()),
                           launch.has_run
                               ? "; the job is not to blame: leave its program where it is as long "
                                 "as it is disturbed, and the machine room for its processes"
                               : "; check the command, and that the machine has room for its "
                                 "processes"));
}

void LaunchMachine::OnEnd(size_t index, MonoTime now, int code) {
  Launch& launch = launches_[index];
  launch.phase = Phase::kEnded;
  const bool was_killed = std::exchange(launch.was_killed, false) && code == kKilledCode;
  if (index == 0 && (form_ == Form::kJob || !was_killed || is_told_)) {
    EndFirst(now, code);
  } else if (IsEnding()) {
    return;
  } else if (was_killed) {
    launch.quick_ends = 0;
    StartAgain(launch, now + kRestartPause);
  } else if (code != 0) {
    NoteQuickEnd(launch, now, code);
  }
}

void LaunchMachine::NoteQuickEnd(Launch& launch, MonoTime now, int code) {
  launch.quick_ends = now - launch.started_at < kQuick ? launch.quick_ends + 1 : 0;
  if (launch.quick_ends == kQuickEndsMax) {
    return GiveUp(now, absl::StrCat(launch.name, " has ended with ", code, " within ",
                                    ToSeconds(kQuick), " s of its start, ", kQuickEndsMax,
                                    " times in a row: what it has said above tells why; start "
                                    "the same command by hand until it runs"));
  }
  launch.ended_with = code;
  StartAgain(launch, now + Doubled(kRestartPause, launch.quick_ends - 1, kQuick * kQuickEndsMax));
}

void LaunchMachine::GiveUp(MonoTime now, std::string why) {
  if (!std::exchange(has_given_up_, true)) {
    actions_.push_back({.kind = Kind::kGiveUp, .text = std::move(why)});
    End(now, SIGTERM);
  }
}

void LaunchMachine::StartNothingMore() {
  for (Launch& launch : launches_) {
    launch.phase = launch.phase == Phase::kWaiting ? Phase::kEnded : launch.phase;
  }
}

void LaunchMachine::EndFirst(MonoTime now, int code) {
  code_ = code;
  over_at_ = now;
  StartNothingMore();
  if (is_told_ && code == kKilledCode && !killed_at_.has_value()) {
    SignalLaunches(now);  // It has told nobody.
  }
}

void LaunchMachine::Tell(MonoTime now) {
  if (!std::exchange(is_told_, true)) {
    told_at_ = now;
  }
  StartNothingMore();
}

void LaunchMachine::End(MonoTime now, int signal) {
  signal_ = signal;
  Tell(now);
  if (!launches_.empty() && launches_.front().IsThere()) {
    // As from a terminal: all at once, so that no shell starts another program in between.
    has_told_group_ = signal == SIGINT;
    actions_.push_back({.kind = has_told_group_ ? Kind::kSignalGroup : Kind::kSignal,
                        .index = 0,
                        .signal = signal});
  } else {
    over_at_ = over_at_.value_or(now);
    SignalLaunches(now);
  }
}

void LaunchMachine::SignalLaunches(MonoTime now) {
  launches_told_at_ = launches_told_at_.value_or(now);
  for (size_t i = 1; i < launches_.size(); ++i) {
    if (launches_[i].IsThere()) {
      actions_.push_back({.kind = Kind::kSignal, .index = i, .signal = signal_});
    }
  }
}

void LaunchMachine::Kill(MonoTime now) { killed_at_ = killed_at_.value_or(now); }

void LaunchMachine::KillAll(MonoTime now) {
  Tell(now);
  Kill(now);
}

void LaunchMachine::Pass(int signal) {
  for (size_t i = form_ == Form::kJob ? 0 : 1; i < launches_.size(); ++i) {
    if (launches_[i].IsThere()) {
      actions_.push_back({.kind = Kind::kSignal, .index = i, .signal = signal});
    }
  }
}

std::vector<LaunchMachine::Action> LaunchMachine::Step(MonoTime now, int rest) {
  if (is_over_) {
    return {};
  }
  StartDue(now);
  if (LooksForRest()) {
    EndRest(now, rest);
  } else if (IsEnding()) {
    EndLaunches(now);
  }
  if (!is_over_ && killed_at_.has_value()) {
    const bool is_hopeless = now - *killed_at_ > kKillPatience;
    is_hopeless ? LeaveRest() : actions_.push_back({.kind = Kind::kKillAll});
  }
  return std::exchange(actions_, {});
}

void LaunchMachine::StartDue(MonoTime now) {
  for (size_t i = 0; i < launches_.size(); ++i) {
    Launch& launch = launches_[i];
    if (launch.phase == Phase::kWaiting && now >= launch.due_at) {
      launch.phase = Phase::kStarting;
      // Not said sooner: the job may have been over by then.
      if (const std::optional<int> code = std::exchange(launch.ended_with, std::nullopt)) {
        actions_.push_back(
            {.kind = Kind::kSay,
             .text = absl::StrCat(launch.name, " has ended with ", *code,
                                  " before the job was over, and is started again")});
      }
      actions_.push_back({.kind = Kind::kStart, .index = i});
    }
  }
}

void LaunchMachine::EndLaunches(MonoTime now) {
  if (!over_at_.has_value()) {
    if (now - told_at_ >= kGroupPatience && !has_told_group_) {
      has_told_group_ = true;
      actions_.push_back({.kind = Kind::kSignalMembers, .index = 0, .signal = signal_});
    }
    if (now - told_at_ >= kGrace) {
      Kill(now);
    }
    return;
  }
  if (!launches_told_at_.has_value() && now - *over_at_ >= kLaunchersPatience) {
    SignalLaunches(now);
  }
  if (launches_told_at_.has_value() && now - *launches_told_at_ >= kGrace) {
    Kill(now);
  }
}

void LaunchMachine::EndRest(MonoTime now, int rest) {
  rest_since_ = rest_since_.value_or(now);
  if (rest == 0) {
    is_over_ = true;
    actions_.push_back({.kind = Kind::kOver, .code = code_});
    return;
  }
  actions_.push_back({.kind = Kind::kSignalRest, .signal = signal_});
  if (now - *rest_since_ >= kGrace) {
    Kill(now);
  }
}

void LaunchMachine::LeaveRest() {
  is_over_ = true;
  actions_.push_back({.kind = Kind::kSay,
                      .text = "some processes of the job cannot be killed: they wait for a device "
                              "or a file system that hangs"});
  actions_.push_back({.kind = Kind::kOver, .code = code_});
}

}  // namespace fsdprun::chaos
