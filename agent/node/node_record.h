#pragma once

// What an agent leaves to the one that is started in its place, while its keeper and the workers
// run on.

#include <optional>
#include <string>
#include <vector>

#include "base/mono_time.h"
#include "proto/cluster/messages.h"
#include "proto/cluster/types.h"

namespace fsdprun {

namespace node {

/// What the node is doing for its generation.
enum class Phase {
  kIdle,       // holds no generation
  kPreparing,  // PrepareNode is running
  kPrepared,   // waits for the commit
  kSpawning,   // SpawnWorkers is running
  kRunning,    // workers run (some may have exited)
  kStopping,   // stop signal sent, waiting for the grace
  kKilling,    // SIGKILL sent
  kWedged,     // a process survived SIGKILL
  kGone,       // no process of the generation is left; its reports are kept for repeating
};

/// How this agent leaves the job.
struct Leaving {
  /// The coordinator has said how the job ended; it may be gone before this node is.
  bool is_released = false;
  bool was_cut_off = false;
  /// The job goes on without this node.
  bool leaves_job = false;
  /// The operator's, or 0.
  int signal = 0;
  int exit_code = 0;
  std::string message;
  /// Whatever of the workers is left then; MonoTime::max(): once they have ended.
  MonoTime exit_at = MonoTime::max();

  bool operator==(const Leaving&) const = default;
};

}  // namespace node

// Note [Adopting workers]
// An agent that is killed in daemon mode leaves a keeper, its workers, and this record, which it
// has kept with the keeper before anything could be seen of what is in it. The next agent goes on
// with it as the same incarnation: to the coordinator it is one whose stream broke. The record has
// what was decided, and nothing of what has become of workers, because that the keeper knows, and
// tells it anew from the beginning: starts, exits, the end of all. So an exit is neither lost with
// an agent that has heard of it nor counted twice: the next one derives the same report from it,
// and the coordinator knows reports that are repeated. Orders to the keeper are made so that they
// can be repeated, too: a start that it has had is none, and to kill again does no harm. Signals
// are the exception: one that was decided on is not sent again, because a worker would take the
// second for impatience, and if it was not sent at all, SIGKILL ends the worker's grace.

/// Times are of this boot of the machine.
struct NodeRecord {
  /// A report that nobody else could tell again.
  struct Report {
    AgentMessage message;
    MonoTime happened_at{};
  };

  Incarnation incarnation;
  Generation highest_seen;
  /// Of the generation held; generation 0: none.
  RankAssignment assignment;
  /// kSpawning also if they run, kKilling also if they are gone.
  node::Phase phase = node::Phase::kIdle;
  std::vector<Report> reports;
  /// SIGKILL follows then; MonoTime::max(): no stop has been ordered.
  MonoTime kill_at = MonoTime::max();
  int stop_signal = 0;
  MonoTime stopped_at = MonoTime::max();
  MonoTime killed_at = MonoTime::max();
  std::optional<node::Leaving> leaving;
  bool was_admitted = false;
  bool may_be_taken_over = false;
  /// The job's; zero: not told.
  Duration node_lease{};
};

}  // namespace fsdprun
