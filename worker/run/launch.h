#pragma once

#include "worker/checkpoint/checkpoint.h"
#include "worker/contract/worker_environment.h"

namespace fsdprun::worker {

/// A launch of the job, as far as its launcher lets it be told.
struct LaunchIdentity {
  checkpoint::Launch launch;
  /// A restart that cannot tell which checkpoints its launch has written.
  bool has_lost_track = false;
};

// Note [Launches under torchrun]
// fsdprun names a launch in FSDPRUN_JOB_ID. torchrun names a run (--rdzv-id), which the next launch
// of the same command may have too, and counts restarts, except those that follow a change of
// membership. But the store that its agent serves lives exactly as long as the launch: rank 0 of
// the first start puts a random id there, and every later one finds it. The store is lost with the
// agent that serves it, and there is none with some rendezvous backends; then the id is unknown.

/// Collective, without communication under fsdprun. Never throws because of a store that does not
/// answer.
LaunchIdentity IdentifyLaunch(const WorkerEnvironment& environment, const checkpoint::Group& group);

}  // namespace fsdprun::worker
