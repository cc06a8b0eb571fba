#pragma once

// The workers of one generation on one node: who runs, and how each has ended.

#include <cstdint>
#include <optional>
#include <vector>

#include "base/mono_time.h"
#include "proto/cluster/types.h"

namespace fsdprun {

class WorkerSet {
 public:
  /// What is known of a worker's end from outside.
  struct Death {
    WorkerExit exit;
    MonoTime died_at{};
    /// Since the worker wrote its error file, if it wrote one.
    std::optional<MonoTime> reported_at;
  };
  /// The same with what only this node knows, and since when the worker has failed.
  struct Ended {
    WorkerExit exit;
    MonoTime failed_at{};
  };

  /// Those of the assignment; none has been started.
  void Begin(const RankAssignment& assignment);
  /// Those that had not ended before; in order of local rank.
  void Started(const std::vector<int64_t>& pids);
  /// Empty if it is no worker of the generation, or its end is known.
  std::optional<Ended> End(const Death& death);
  /// They are gone, whether or not their ends were seen. How many had not ended.
  int EndAll();
  /// A stop signal, or SIGKILL, is sent to all that run.
  void SignalSent(int signal, MonoTime now);
  void KillSent(MonoTime now);
  /// The same as it was known to an agent before this one; and what that has to be told.
  void Resume(int stop_signal, MonoTime stopped_at, MonoTime killed_at);
  void Stopped(int& stop_signal, MonoTime& stopped_at, MonoTime& killed_at) const;
  /// A worker tells how far it has come. False if there is no such worker.
  bool NoteStep(int local_rank, int64_t step);

  int live() const { return live_; }
  std::vector<int64_t> RunningPids() const;
  /// Empty, or what is wrong.
  std::string CheckInvariants() const;

 private:
  enum class State { kNotStarted, kRunning, kEnded };
  struct Worker {
    State state = State::kNotStarted;
    int64_t pid = 0;
    int64_t last_step = -1;
  };

  bool IsOne(int local_rank) const {
    return local_rank >= 0 && local_rank < static_cast<int>(workers_.size());
  }
  bool IsOurSignal(int signal, MonoTime died_at) const;
  MonoTime FailedAt(const Death& death) const;

  std::vector<Worker> workers_;
  int live_ = 0;
  int rank_offset_ = 0;
  int stop_signal_ = 0;
  /// When they were sent their first signal, and SIGKILL; MonoTime::max() before.
  MonoTime stopped_at_ = MonoTime::max();
  MonoTime killed_at_ = MonoTime::max();
};

}  // namespace fsdprun
