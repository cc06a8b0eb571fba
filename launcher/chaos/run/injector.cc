#include "launcher/chaos/run/injector.h"

#include <algorithm>
#include <atomic>
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

Injector::Injector(EventLoop& loop, Options options)
    : options_(std::move(options)), fill_thread_(loop), damage_thread_(loop) {}

Injector::~Injector() {
  GiveUpBeginnings();
  while (!stopped_.empty()) {
    Continue(stopped_.begin()->first);
  }
  while (!disturbed_.empty()) {
    Restore(disturbed_.begin()->first);
  }
}

void Injector::Begin(size_t index, const PlannedFault& fault, const Then& then) {
  switch (fault.kind) {
    case FaultKind::kKill:
      return then(Kill(fault));
    case FaultKind::kStop:
      return then(Stop(index, fault));
    case FaultKind::kPartition:
    case FaultKind::kDelay:
      return then(Disturb(index, fault));
    case FaultKind::kFill:
      return Fill(index, then);
    case FaultKind::kCorrupt:
      return Corrupt(index, fault, then);
  }
}

void Injector::BeginOn(FileThread& thread, size_t index, Work work, std::function<void()> then) {
  beginning_[index] = std::move(work.stop);
  thread.Run(std::move(work.run),
             [this, index, then = std::move(then), late = std::move(work.late)] {
               if (beginning_.erase(index) > 0) {
                 then();
               } else if (late) {
                 late();
               }
             });
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

void Injector::Fill(size_t index, const Then& then) {
  const auto filler = std::make_shared<RoomFiller>();
  const auto bytes = std::make_shared<absl::StatusOr<int64_t>>(absl::UnknownError(""));
  filled_[index] = filler;
  BeginOn(fill_thread_, index,
          {[filler, bytes, folder = options_.fill, leave = options_.fill_leave] {
             *bytes = filler->Fill(folder, leave);
           },
           [filler] { filler->Stop(); },
           {}},
          [this, index, bytes, then] {
            if (!bytes->ok()) {
              filled_.erase(index);
              return then(bytes->status());
            }
            then(Done{absl::StrCat(options_.fill, " (", **bytes / kMebibyte, " MiB)"), {}});
          });
}

// Nothing is damaged in vain, where there is no victim.
void Injector::Corrupt(size_t index, const PlannedFault& fault, const Then& then) {
  const PlannedFault kill{.target = FaultTarget::kWorker, .pick = fault.pick};
  if (const absl::Status status = Victim(kill).status(); !status.ok()) {
    return then(status);
  }
  const auto file = std::make_shared<absl::StatusOr<std::string>>(absl::UnknownError(""));
  const auto is_wanted = std::make_shared<std::atomic<bool>>(true);
  BeginOn(damage_thread_, index,
          {[file, is_wanted, damage = damage_, folder = options_.corrupt, pick = fault.pick] {
             *file = damage->Flip(folder, pick, [is_wanted] { return is_wanted->load(); });
           },
           [is_wanted] { *is_wanted = false; },
           [this, index, file] {
             if (file->ok()) {
               options_.on_late(index, absl::StrCat(**file, " was damaged after that"));
             }
           }},
          [this, file, kill, then] { then(KillAfterDamage(kill, *file)); });
}

// What is damaged stays so, also if workers have ended by themselves meanwhile: it is the next
// world that reads it. The victim is chosen anew: the damage may have taken long.
absl::StatusOr<Injector::Done> Injector::KillAfterDamage(
    const PlannedFault& kill, const absl::StatusOr<std::string>& file) const {
  if (!file.ok()) {
    return file.status();
  }
  const absl::StatusOr<JobProcess> victim = Victim(kill);
  if (!victim.ok()) {
    return Done{absl::StrCat(*file, "; ", std::string(victim.status().message())),
                {.new_world = true}};
  }
  const bool is_killed = SendKill(*victim);
  return Done{is_killed ? absl::StrCat(*file, " and kill ", TextOf(*victim))
                        : absl::StrCat(*file, "; ", TextOf(*victim), kEndedAlready),
              AfterDeath(*victim)};
}

void Injector::Lift(size_t index) {
  Continue(index);
  Restore(index);
  StopBeginning(index);
  GiveBack(index);
}

void Injector::StopBeginning(size_t index) {
  const auto beginning = beginning_.extract(index);
  if (!beginning.empty()) {
    beginning.mapped()();
  }
}

// What was taken is freed on the thread, after what is under way there.
void Injector::GiveBack(size_t index) {
  auto filled = filled_.extract(index);
  if (!filled.empty()) {
    fill_thread_.Run([filler = std::move(filled.mapped())]() mutable { filler.reset(); }, [] {});
  }
}

void Injector::GiveUpBeginnings() {
  while (!beginning_.empty()) {
    Lift(beginning_.begin()->first);
  }
}

void Injector::Settle(MonoTime deadline) {
  for (FileThread* thread : {&fill_thread_, &damage_thread_}) {
    const auto has_ended = std::make_shared<bool>(false);
    thread->Run([] {}, [has_ended] { *has_ended = true; });
    while (!*has_ended && thread->Await(deadline)) {
    }
  }
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
