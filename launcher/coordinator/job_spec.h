#pragma once

// What a job's command line and its surroundings say, as far as the coordinator decides by it.

#include <set>
#include <string>

#include "base/mono_time.h"
#include "proto/cluster/clocks.h"
#include "proto/cluster/messages.h"

namespace fsdprun {

/// Constants of one job; but for `min_nodes` and `max_nodes`, which an operator may change.
struct JobSpec {
  /// Random name of this launch; part of every assignment. Each launch counts generations from 1,
  /// so only launch and generation together identify a world.
  std::string launch_id;
  int min_nodes = 1;
  int max_nodes = 1;
  /// Failed generations that may be followed by another one; for the whole job, not per node.
  int max_restarts = 0;
  /// A requested node rank is an order: no other rank will do, and nobody else gets it. Otherwise
  /// it is a preference, dropped with a warning where it cannot be met.
  bool node_ranks_bind = true;
  /// Pause before the first restart after a failure, doubled before each further one in a row, up
  /// to the maximum. A world that ran for longer than the maximum begins a new row.
  Duration restart_backoff{};
  Duration max_restart_backoff{};
  /// So many worlds in a row that end because of the same node, within the window, and it is left
  /// out of the next ones as long as others are enough; 0: never. See Note [Evidence about a node].
  int quarantine_after = 0;
  Duration quarantine_window = std::chrono::seconds(600);
  /// How long the job waits for min_nodes, at the start and after a loss.
  Duration join_timeout = std::chrono::seconds(600);
  /// How long a first formation with at least min_nodes waits for more, up to max_nodes.
  Duration last_call = std::chrono::seconds(30);
  /// How long a node that may join a running world waits for others that come with it: since the
  /// latest and since the first of them. Each growth stops the world once. Nobody waits if the
  /// world gets max_nodes.
  Duration growth_settle = std::chrono::milliseconds(200);
  Duration growth_settle_max = std::chrono::milliseconds(600);
  /// How long a job that cannot start, because a node cannot run the program, waits for the other
  /// nodes, to tell them.
  Duration cannot_start_notice = std::chrono::seconds(5);
  /// Between the stop signal and SIGKILL when workers are drained: an operator's stop, a membership
  /// change.
  Duration stop_grace = std::chrono::seconds(30);
  /// The same when a failure has ended the generation: the surviving workers cannot get on without
  /// the failed one, so their time is the job's downtime. Never longer than `stop_grace`.
  Duration abort_grace = std::chrono::seconds(2);
  /// Time without a heartbeat after which a node is suspected, and after which it is lost.
  /// See Clocks.
  Duration suspect_after = Clocks{}.suspect_after;
  Duration dead_after = Clocks{}.node_lease;
  /// A coordinator that is started again, some time, can take the job over: see Note [Taking a job
  /// over]. Agents are told, and wait for one as long as for a silent one. Not with ranks that
  /// bind: a successor cannot tell whether the rank of a node that has not come again may be given
  /// away.
  bool may_be_taken_over = false;
  /// A coordinator stands by that takes the job over at once, at the same address: agents need not
  /// know. Not with ranks that bind.
  bool has_standby = false;
  /// A coordinator after this one needs the whole record.
  bool keeps_record() const { return may_be_taken_over || has_standby; }
  /// How long after that the nodes it knows may take to come again.
  Duration rejoin_grace = std::chrono::seconds(10);
  /// A node whose stream broke is lost unless the same incarnation is back within this time. Where
  /// another agent may have to be started in its place, it has as long as for silence.
  Duration reconnect_grace = std::chrono::milliseconds(250);
  /// Deadline of the answers to prepare and to commit.
  Duration prepare_timeout = std::chrono::seconds(60);
  Duration start_timeout = std::chrono::seconds(60);
  /// How long a stop order may take beyond its grace (SIGKILL, wedge detection, messages).
  Duration stop_margin = std::chrono::seconds(8);
  /// How long released agents may take to send AgentLeft before the job finishes without them.
  Duration release_timeout = std::chrono::seconds(1);
  /// For how long it is certain that no other launcher becomes the host of the job, once that was
  /// looked up; zero: none ever can. And when this launcher became it.
  Duration place_sure_for{};
  MonoTime place_sure_from{};
  /// Runs of the same job before this launch.
  int earlier_restarts = 0;
  /// Names of the nodes that a scheduler has given to the job: it signals all of their agents, or
  /// this process, to end it; see Note [A signal to an agent]. On other nodes, the agent leaves.
  std::set<std::string> signalled_together;
  /// How much later than the first of them another agent may get the same signal.
  Duration signal_spread = std::chrono::seconds(5);
  /// The job's exit code is that of the root cause, or 128 + n for a signal; else it is 1.
  bool exits_as_worker = false;
  /// A world that hangs ends the job; else it is a failure like others: see job::WorldHangs.
  bool hang_ends_job = false;
  /// If more than this fraction of the nodes (and at least three) are silent at once, the
  /// coordinator assumes that it is itself partitioned.
  double partition_fraction = 0.3;
};

/// What an agent that is admitted is told about the job.
AdmitAgent AdmissionOf(const JobSpec& spec);

}  // namespace fsdprun
