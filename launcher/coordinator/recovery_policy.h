#pragma once

// What a failure costs and what follows the end of a world: pure functions of what has happened,
// what is used up and what the job allows.

#include <string>

#include "base/mono_time.h"
#include "launcher/coordinator/job_spec.h"
#include "proto/cluster/types.h"

namespace fsdprun::job {

/// Why a world is stopped.
enum class StopKind { kFailure, kMembership, kOperator };

/// What is used up.
struct RecoveryBudgets {
  /// Failed worlds that were followed by another one.
  int restarts_used = 0;
  /// Losses, departures and growth that ended a world without counting as a failure of the program.
  int membership_changes = 0;
  /// Worlds formed since the last restart.
  int worlds_of_attempt = 0;
  /// Failed worlds in a row, for the pause before the next.
  int failures_in_a_row = 0;
};

/// How a world has ended, or will: what is not known yet is left out.
struct WorldEnd {
  StopKind kind = StopKind::kMembership;
  /// The workers have done all that there was to do.
  bool is_done = false;
  /// A worker has failed in a way that a restart cannot help.
  bool is_permanent = false;
  /// It did not get on, and that ends the job.
  bool is_final_hang = false;
  /// An operator ends the job.
  bool is_stopped_by_operator = false;
  /// Another launcher may have become the host of the job.
  bool is_place_lost = false;
  /// Since its workers were ordered to start; zero if they never were.
  Duration ran_for{};
};

/// From the best that can happen to the worst, as far as it is up to this launcher.
enum class Rung {
  kSucceed,
  /// A world of other members, at once and free of charge.
  kReform,
  /// All workers anew, charged to the restart budget.
  kRestart,
  kStopForOperator,
  /// No world may be formed here.
  kLeaveToOtherHost,
  /// The failure ends the job.
  kGiveUp,
};

struct Recovery {
  Rung rung = Rung::kSucceed;
  /// What is used up with it.
  RecoveryBudgets budgets;
  /// Before the next world.
  Duration pause{};
  /// For kGiveUp: why nothing follows, for the sentence that names the root cause.
  std::string why;

  bool FormsWorld() const { return rung == Rung::kReform || rung == Rung::kRestart; }
};

Recovery Recover(const WorldEnd& end, const RecoveryBudgets& budgets, const JobSpec& spec);

/// A member of a world that is gone.
struct MemberLoss {
  CauseKind cause = CauseKind::kNodeLost;
  /// An operator has ended its agent.
  bool was_leaving = false;
  /// All of its workers had exited with 0.
  bool was_done = false;
  /// Workers may have been started; before that, nothing is lost with a node but its place.
  bool has_begun = true;
};
/// Whether it counts as a failure of the world or as a change of its members.
StopKind KindOf(const MemberLoss& loss);

/// Between the stop signal and SIGKILL. Survivors of a failure cannot get on without who has
/// failed; other workers may finish what they are doing, such as a checkpoint.
Duration GraceOf(StopKind kind, const JobSpec& spec);

}  // namespace fsdprun::job
