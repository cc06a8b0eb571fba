#include "agent/node/worker_set.h"

#include <algorithm>
#include <chrono>
#include <csignal>

namespace fsdprun {
namespace {

/// A worker that ran on for longer after it had written its error file has handled that error.
constexpr Duration kLongestWayOut = std::chrono::seconds(10);

}  // namespace

void WorkerSet::Begin(const RankAssignment& assignment) {
  workers_.assign(assignment.local_world_size, Worker{});
  live_ = 0;
  rank_offset_ = assignment.rank_offset;
  stop_signal_ = 0;
  stopped_at_ = MonoTime::max();
  killed_at_ = MonoTime::max();
}

void WorkerSet::Started(const std::vector<int64_t>& pids) {
  for (size_t i = 0; i < workers_.size() && i < pids.size(); ++i) {
    if (workers_[i].state == State::kNotStarted) {
      workers_[i] = {State::kRunning, pids[i], -1};
      ++live_;
    }
  }
}

/// What was sent before the death counts, not what was sent before the death was heard of.
std::optional<WorkerSet::Ended> WorkerSet::End(const Death& death) {
  const int local_rank = death.exit.local_rank;
  if (!IsOne(local_rank) || workers_[local_rank].state == State::kEnded) {
    return std::nullopt;
  }
  Worker& worker = workers_[local_rank];
  live_ -= worker.state == State::kRunning ? 1 : 0;
  worker.state = State::kEnded;
  Ended ended{death.exit, FailedAt(death)};
  WorkerExit& exit = ended.exit;
  exit.rank = rank_offset_ + local_rank;
  exit.last_step = std::max(exit.last_step, worker.last_step);
  exit.after_stop = death.died_at >= stopped_at_;
  exit.killed_by_us = IsOurSignal(exit.signal, death.died_at);
  exit.failed_before_stop = exit.after_stop && ended.failed_at < stopped_at_;
  return ended;
}

bool WorkerSet::IsOurSignal(int signal, MonoTime died_at) const {
  return (signal == stop_signal_ && signal != 0 && died_at >= stopped_at_) ||
         (signal == SIGKILL && died_at >= killed_at_);
}

/// A program reports its error before it tears down its connections, which is what its peers
/// notice, and may take long to end after that. A crash and a foreign signal leave no time for a
/// report: an error file is older then.
MonoTime WorkerSet::FailedAt(const Death& death) const {
  const int signal = death.exit.signal;
  const bool reports = signal == 0 || signal == SIGABRT || IsOurSignal(signal, death.died_at);
  if (!reports || !death.reported_at) {
    return death.died_at;
  }
  const MonoTime reported_at = std::min(*death.reported_at, death.died_at);
  return death.died_at - reported_at <= kLongestWayOut ? reported_at : death.died_at;
}

int WorkerSet::EndAll() {
  int ended = 0;
  for (Worker& worker : workers_) {
    ended += worker.state == State::kEnded ? 0 : 1;
    worker.state = State::kEnded;
  }
  live_ = 0;
  return ended;
}

void WorkerSet::SignalSent(int signal, MonoTime now) {
  stop_signal_ = signal;
  stopped_at_ = now;
}

void WorkerSet::KillSent(MonoTime now) {
  stopped_at_ = std::min(stopped_at_, now);
  killed_at_ = std::min(killed_at_, now);
}

void WorkerSet::Resume(int stop_signal, MonoTime stopped_at, MonoTime killed_at) {
  stop_signal_ = stop_signal;
  stopped_at_ = stopped_at;
  killed_at_ = killed_at;
}

void WorkerSet::Stopped(int& stop_signal, MonoTime& stopped_at, MonoTime& killed_at) const {
  stop_signal = stop_signal_;
  stopped_at = stopped_at_;
  killed_at = killed_at_;
}

bool WorkerSet::NoteStep(int local_rank, int64_t step) {
  if (!IsOne(local_rank)) {
    return false;
  }
  workers_[local_rank].last_step = std::max(workers_[local_rank].last_step, step);
  return true;
}

std::vector<int64_t> WorkerSet::RunningPids() const {
  std::vector<int64_t> pids;
  for (const Worker& worker : workers_) {
    if (worker.state == State::kRunning) {
      pids.push_back(worker.pid);
    }
  }
  return pids;
}

std::string WorkerSet::CheckInvariants() const {
  return RunningPids().size() == static_cast<size_t>(live_)
             ? ""
             : "live_ does not count the running workers";
}

}  // namespace fsdprun
