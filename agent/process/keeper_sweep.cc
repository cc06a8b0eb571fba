// Which processes a keeper kills and reaps. See Note [Who belongs to a worker].
#include <sys/wait.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "agent/process/keeper.h"

namespace fsdprun::keeper {
namespace {

constexpr int64_t kShortestSweepPauseNs = 1'000'000;
constexpr int64_t kLongestSweepPauseNs = 100'000'000;

}  // namespace

void Keeper::Sweep() {
  last_sweep_ns_ = NowNs(CLOCK_MONOTONIC);
  ScanDescendants(
      self_,
      {.leaves_out = [this](pid_t pid) { return NeedsNoScan(pid); },
       .skips_children = [this](const ProcessInfo& process) { return IsSpared(process); }},
      processes_);
  MarkVictims();
  const bool killed_any = KillVictims();
  ReapOrphans();
  ReapWorkers();
  log_writer_.ReapAbandoned();
  if (all_gone_pending_ && workers_.empty() && !HasAnyChild()) {
    all_gone_pending_ = false;
    Tell(AllGoneReport{life_});
  }
  const bool some_dead =
      std::any_of(workers_.begin(), workers_.end(), [](const auto& w) { return w->IsOver(); });
  const bool some_to_kill = std::any_of(workers_.begin(), workers_.end(),
                                        [](const auto& w) { return w->kill_requested; });
  ScheduleSweep(killed_any || some_dead || some_to_kill || (all_gone_pending_ && workers_.empty()));
}

/// Victims are the sessions of dead workers and of those to be killed, with all their descendants;
/// once no other worker is alive, every descendant of the keeper.
void Keeper::MarkVictims() {
  is_ours_.assign(processes_.size(), 0);
  is_spared_.assign(processes_.size(), 0);
  is_victim_.assign(processes_.size(), 0);
  const bool takes_all = std::none_of(workers_.begin(), workers_.end(), [](const auto& w) {
    return w->IsAlive() && !w->kill_requested;
  });
  for (size_t i = 0; i < processes_.size(); ++i) {
    is_ours_[i] = processes_[i].pid == self_;
    is_spared_[i] = log_writer_.Owns(processes_[i].pid);
    for (const auto& worker : workers_) {
      const bool is_member =
          processes_[i].session == worker->pid || processes_[i].pid == worker->pid;
      const bool keeps = worker->IsAlive() && !worker->kill_requested;
      is_spared_[i] = is_spared_[i] || (is_member && keeps);
      is_victim_[i] = is_victim_[i] || (is_member && !keeps);
    }
  }
  MarkDescendants(processes_, is_ours_);
  MarkDescendants(processes_, is_spared_);
  MarkDescendants(processes_, is_victim_);
  for (size_t i = 0; i < processes_.size(); ++i) {
    const bool is_candidate = (takes_all && is_ours_[i]) || is_victim_[i];
    is_victim_[i] = is_candidate && is_ours_[i] && !is_spared_[i] && processes_[i].pid != self_;
  }
}

/// True when there was a living victim.
bool Keeper::KillVictims() {
  bool any = false;
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (is_victim_[i] && !processes_[i].IsDead()) {
      KillExactly(processes_[i]);
      any = true;
    }
  }
  return any;
}

void Keeper::ReapOrphans() {
  for (const ProcessInfo& process : processes_) {
    if (process.parent == self_ && process.IsDead() && !IsWorkerPid(process.pid)) {
      ::waitpid(process.pid, nullptr, WNOHANG);
    }
  }
}

void Keeper::ReapWorkers() {
  std::erase_if(workers_, [this](const std::unique_ptr<Worker>& worker) {
    const bool is_reported = worker->phase == Phase::kReported && !worker->HasLateOutput();
    const bool is_over = is_reported || worker->phase == Phase::kFailed;
    if (!is_over || (worker->pid > 0 && HasSession(worker->pid))) {
      return false;
    }
    const pid_t reaped = worker->pid > 0 ? ::waitpid(worker->pid, nullptr, WNOHANG) : worker->pid;
    if (reaped != worker->pid && (reaped >= 0 || errno != ECHILD)) {
      return false;
    }
    EndLogs(*worker);
    return true;
  });
}

bool Keeper::HasSession(pid_t leader) const {
  return std::any_of(processes_.begin(), processes_.end(), [leader](const ProcessInfo& process) {
    return process.session == leader && process.pid != leader && !process.IsDead();
  });
}

/// A live worker keeps all its descendants, and one that has ended has none. To read of each
/// worker in /proc that this is so takes longer than all else that is done for its end.
bool Keeper::NeedsNoScan(pid_t pid) const {
  return std::any_of(workers_.begin(), workers_.end(), [pid](const auto& w) {
    return w->pid == pid && (w->IsAlive() ? !w->kill_requested : w->has_ended);
  });
}

bool Keeper::IsSpared(const ProcessInfo& process) const {
  return std::any_of(workers_.begin(), workers_.end(), [&process](const auto& w) {
    return w->IsAlive() && !w->kill_requested &&
           (process.pid == w->pid || process.session == w->pid);
  });
}

bool Keeper::IsWorkerPid(pid_t pid) const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [pid](const auto& w) { return w->pid == pid; });
}

/// A worker, or a descendant of one. All descendants of the keeper but the log writer are.
bool Keeper::IsOfWorker(pid_t pid) {
  ScanDescendants(self_, {}, processes_);
  is_ours_.assign(processes_.size(), 0);
  for (size_t i = 0; i < processes_.size(); ++i) {
    is_ours_[i] = processes_[i].pid == self_;
  }
  MarkDescendants(processes_, is_ours_);
  for (size_t i = 0; i < processes_.size(); ++i) {
    if (processes_[i].pid == pid) {
      return is_ours_[i] && pid != self_ && !log_writer_.Owns(pid);
    }
  }
  return false;
}

/// At once if nothing else is alive; otherwise workers that end together are swept together.
void Keeper::SweepSoon() {
  const bool is_last = std::none_of(workers_.begin(), workers_.end(), [](const auto& w) {
    return w->IsAlive() || w->phase == Phase::kOpening;
  });
  sweep_wanted_ = true;
  sweep_pause_ns_ = 0;
  next_sweep_ns_ = is_last ? 0 : std::min(next_sweep_ns_, last_sweep_ns_ + kShortestSweepPauseNs);
}

/// While processes are dying the pause doubles up to its limit, so that an unkillable process costs
/// little; otherwise SIGCHLD triggers at most one sweep per kLongestSweepPauseNs.
void Keeper::ScheduleSweep(bool unfinished) {
  sweep_wanted_ = unfinished;
  sweep_pause_ns_ =
      unfinished ? std::clamp(sweep_pause_ns_ * 2, kShortestSweepPauseNs, kLongestSweepPauseNs)
                 : kLongestSweepPauseNs;
  next_sweep_ns_ = NowNs(CLOCK_MONOTONIC) + sweep_pause_ns_;
}

}  // namespace fsdprun::keeper
