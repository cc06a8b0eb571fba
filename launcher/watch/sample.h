#pragma once

// What is known of a worker at one moment, as the watch takes it. Values only.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mono_time.h"
#include "base/strong_id.h"
#include "proto/cluster/types.h"

namespace fsdprun::watch {

/// What a worker says that it is doing.
enum class Activity {
  kOther,
  kStarting,
  kWaitingForData,
  kForward,
  kBackward,
  kOptimizer,
  kEvaluating,
  kSaving,
  kLoading,
  kCollective,
};
/// Of OwnVitals::phase; kOther for a name that is not known.
Activity ActivityNamed(std::string_view name);
/// "waiting for data", for people.
std::string_view TextOf(Activity activity);

/// What a worker says of itself.
struct OwnSample {
  /// Of the step that is being computed; -1: before the first, or it does not say.
  int64_t step = -1;
  Activity activity = Activity::kOther;
  /// Collectives that it has entered, and that it has left.
  uint64_t begun = 0;
  uint64_t ended = 0;
  /// The oldest that it has not left: what it is, of which unit, and its bytes.
  std::string collective;
  std::string unit;
  int64_t bytes = 0;
  /// The latest whole step: in all, and of that waiting in collectives, waiting for data, saving.
  Duration step_time{};
  Duration collective_wait{};
  Duration data_wait{};
  Duration save_time{};

  bool IsInCollective() const { return begun > ended; }
};

struct Sample {
  int rank = 0;
  int64_t pid = 0;
  /// Of /proc/PID/stat: R, S, D, T, t or Z.
  char state = 'R';
  /// Used so far.
  Duration cpu{};
  /// Absent: it says nothing of itself.
  std::optional<OwnSample> own;
};

/// The ranks of a world on one node: first_rank to first_rank + workers - 1.
struct NodeRanks {
  std::string name;
  int first_rank = 0;
  int workers = 0;
};

// --- Events

/// Its workers start. The world before has ended, if it has not yet.
struct WorldBegan {
  Generation generation;
  std::vector<NodeRanks> nodes;
  /// How often each node tells of its workers.
  Duration every = std::chrono::seconds(1);
};
/// Its workers are being stopped, or have ended.
struct WorldEnded {};
/// The workers of one node, all of which it knows.
struct VitalsCame {
  Generation generation;
  std::vector<Sample> workers;
};
/// Rank 0 has told its step by the control socket.
struct StepReported {
  int64_t step = 0;
};
/// The world is about to be stopped because of the hang that was found.
struct ActedOnHang {};
/// The time of ProgressWatch::wake_at has come.
struct TimerDue {};

}  // namespace fsdprun::watch
