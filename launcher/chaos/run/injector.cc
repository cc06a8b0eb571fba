#include "launcher/chaos/run/injector.h"

#include <algorithm>
#include <csignal>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"
#include "base/status_macros.h"

namespace fsdprun::chaos {
namespace {

constexpr int64_t kMebibyte = 1 << 20;
constexpr char kEndedAlready[] = " has just ended by itself";

bool Send(const JobProcess& process, int signal) {
  return SignalExactly(
      {.pid = static_cast<pid_t>(process.pid), .start_time_ticks = process.start_ticks}, signal);
}

/// What the job has to do after the death of one of its processes.
Expectation AfterDeath(const JobProcess& process) {
  const bool is_coordinator = process.role == FaultTarget::kCoordinator;
  const bool may_be_adopted = is_coordinator || process.is_session;
  return {.new_world = !may_be_adopted || process.is_both,
          .new_coordinator = is_coordinator || process.is_both};
}

}  // namespace

Injector::Injector(Options options) : options_(std::move(options)) {}

Injector::~Injector() {
  while (!stopped_.empty()) {
    Continue(stopped_.begin()->first);
  }
  while (!disturbed_.empty()) {
    Restore(disturbed_.begin()->first);
  }
}

absl::StatusOr<Injector::Done> Injector::Begin(size_t index, const PlannedFault& fault) {
  switch (fault.kind) {
    case FaultKind::kKill:
      return Kill(fault);
    case FaultKind::kStop:
      return Stop(index, fault);
    case FaultKind::kPartition:
    case FaultKind::kDelay:
      return Disturb(index, fault);
    case FaultKind::kFill:
      return Fill(index);
    case FaultKind::kCorrupt:
      return Corrupt(fault);
  }
  return absl::InternalError("no such kind of fault");
}

absl::StatusOr<JobProcess> Injector::Victim(const PlannedFault& fault) const {
  const std::optional<JobProcess> victim = ChooseVictim(options_.find(), fault);
  if (!victim.has_value()) {
    return absl::NotFoundError(
        absl::StrCat("the job has no such ", NameOf(fault.target), " on this machine now"));
  }
  return *victim;
}

absl::StatusOr<Injector::Done> Injector::Kill(const PlannedFault& fault) {
  ASSIGN_OR_RETURN(const JobProcess victim, Victim(fault));
  if (!SendKill(victim)) {
    return absl::NotFoundError(absl::StrCat(TextOf(victim), kEndedAlready));
  }
  return Done{TextOf(victim), AfterDeath(victim)};
}

bool Injector::SendKill(const JobProcess& victim) const {
  const bool is_sent = Send(victim, SIGKILL);
  if (is_sent) {
    options_.on_killed(victim.pid);
  }
  return is_sent;
}

absl::StatusOr<Injector::Done> Injector::Stop(size_t index, const PlannedFault& fault) {
  ASSIGN_OR_RETURN(const JobProcess victim, Victim(fault));
  if (!Send(victim, SIGSTOP)) {
    return absl::NotFoundError(absl::StrCat(TextOf(victim), kEndedAlready));
  }
  stopped_[index] = victim;
  return Done{TextOf(victim), {}};
}

absl::StatusOr<Injector::Done> Injector::Disturb(size_t index, const PlannedFault& fault) {
  const std::optional<int> number = ChooseNumber(static_cast<int>(links_.size()), fault);
  if (!number.has_value()) {
    return absl::NotFoundError("there is no such agent");
  }
  const bool is_cut = fault.kind == FaultKind::kPartition;
  TcpLink& link = *links_[static_cast<size_t>(*number)];
  if (is_cut) {
    link.Cut();
  } else {
    link.Delay(fault.latency);
  }
  disturbed_[index] = {.link = *number, .is_cut = is_cut, .latency = fault.latency};
  return Done{absl::StrCat("agent ", *number), {}};
}

absl::StatusOr<Injector::Done> Injector::Fill(size_t index) {
  RoomFiller filler;
  ASSIGN_OR_RETURN(const int64_t bytes, filler.Fill(options_.fill, options_.fill_leave));
  filled_[index] = std::move(filler);
  return Done{absl::StrCat(options_.fill, " (", bytes / kMebibyte, " MiB)"), {}};
}

// The victim comes first: nothing is damaged in vain. What is damaged stays so, also if the victim
// has ended by itself meanwhile.
absl::StatusOr<Injector::Done> Injector::Corrupt(const PlannedFault& fault) {
  ASSIGN_OR_RETURN(const JobProcess victim,
                   Victim({.target = FaultTarget::kWorker, .pick = fault.pick}));
  ASSIGN_OR_RETURN(const std::string file, damage_.Flip(options_.corrupt, fault.pick));
  const bool is_killed = SendKill(victim);
  return Done{is_killed ? absl::StrCat(file, " and kill ", TextOf(victim))
                        : absl::StrCat(file, "; ", TextOf(victim), kEndedAlready),
              AfterDeath(victim)};
}

void Injector::Lift(size_t index) {
  Continue(index);
  Restore(index);
  filled_.erase(index);
}

void Injector::Continue(size_t index) {
  const auto node = stopped_.extract(index);
  if (node.empty()) {
    return;
  }
  const JobProcess& process = node.mapped();
  const bool is_still_meant =
      std::any_of(stopped_.begin(), stopped_.end(), [&process](const auto& entry) {
        return entry.second.pid == process.pid && entry.second.start_ticks == process.start_ticks;
      });
  if (!is_still_meant) {
    Send(process, SIGCONT);
  }
}

// Other faults of the same link go on.
void Injector::Restore(size_t index) {
  const auto node = disturbed_.extract(index);
  if (node.empty()) {
    return;
  }
  const int number = node.mapped().link;
  TcpLink& link = *links_[static_cast<size_t>(number)];
  link.Heal();
  for (const auto& [other, disturbance] : disturbed_) {
    if (disturbance.link != number) {
      continue;
    }
    if (disturbance.is_cut) {
      link.Cut();
    } else {
      link.Delay(disturbance.latency);
    }
  }
}

}  // namespace fsdprun::chaos
