#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "worker/checkpoint/error.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"

namespace fsdprun::worker::checkpoint {

// Note [Commit protocol]
//   1. rank 0 makes `step-N.tmp-<generation>-<claim>/`; every rank writes its file there and syncs
//      file and directory; the ranks exchange results, and any error ends the attempt for all;
//   2. rank 0, under the directory's lock and after checking its claim: writes and syncs
//      fsdprun.json and `.metadata`, syncs the directory; renames it to `step-N` (swap, if one
//      of ours is there; one of others is refused); syncs the parent; then `latest` (tmp, sync,
//      rename, sync);
//   3. prune: old checkpoints are renamed to a name that no reader takes for a checkpoint; sync;
//      then they are removed.
// A directory named `step-N` is therefore always complete, and a crash at any point, a power loss
// included, leaves every earlier checkpoint in place. Readers list the directories and do not use
// `latest`. What a rename or a swap has replaced is removed only after the
// parent was synced: file systems may keep a removal although they lose an earlier rename.

// Note [Fencing by claim]
// A process that was replaced but still runs must not publish over its successor. Rank 0 claims
// the directory at start by writing job, generation and a random id into `.claim`; the newest
// claim wins, and publishing requires that the claim is still the publisher's own. Only a late
// start, one of an older generation of the same job, is refused a claim. Another job may take over,
// and so may the same command started again: a job id names one launch. Without a job id (another
// launcher, or started without one) generations are not compared.

struct Claim {
  std::string job_id;
  uint64_t generation = 0;
  std::string id;  // random, unique per Saver: 16 hex digits
  bool operator==(const Claim&) const = default;
};

using Warn = std::function<void(const std::string&)>;

std::string StepName(int64_t step);
/// The step of a directory name "step-<N>", N without leading zeros; else nullopt.
std::optional<int64_t> ParseStepName(std::string_view name);
std::string TemporaryName(int64_t step, const Claim& claim);

/// A save may replace what a Saver has written, of whatever launch and however damaged, and what is
/// not there. Errors: CheckpointError if `target` is a directory without fsdprun.json: as in Prune,
/// it was put there by others.
void CheckReplaceable(const std::string& target);

/// Removes what an attempt to save `step` left; 0 or an errno. Not after UnsyncedPublication: then
/// that is the checkpoint which was replaced.
int RemoveAttempt(FileSystem& file_system, const std::string& directory, int64_t step,
                  const Claim& claim);

/// Rank 0 at start: makes `directory`, claims it, restores a checkpoint whose replacement a crash
/// interrupted, and removes what dead runs left. Errors: CheckpointError.
void AcquireClaim(FileSystem& file_system, const std::string& directory, const Claim& claim,
                  const Warn& warn);

/// Published, but a power failure may undo it. Nothing that it replaced may be removed before a new
/// Saver has synced the directory: having reported the error once, Linux lets a second sync succeed
/// that has written nothing.
class UnsyncedPublication : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// Rank 0, step 2 of the protocol; `manifest.sequence` is set here. Returns the published path.
/// Errors: CheckpointError; earlier checkpoints are untouched then, and nothing is published unless
/// the error is UnsyncedPublication. A `latest` that could not be written is only a warning.
std::string Publish(FileSystem& file_system, const std::string& directory, const Claim& claim,
                    const std::string& metadata_bytes, Manifest manifest, const Warn& warn);

/// A directory `step-<N>`.
struct StepEntry {
  std::string path;
  int64_t step = 0;
  bool is_complete = false;         // has .metadata
  std::optional<int64_t> sequence;  // 0: there is no fsdprun.json; absent: it is unreadable
  std::string job_id;               // empty: unknown
};

/// Newest first: by publication, then by step. An entry whose fsdprun.json is damaged counts as
/// newer than all, so that it is tried and reported rather than overlooked.
std::vector<StepEntry> ListSteps(const std::string& directory);

/// Removes all but the newest `keep` complete checkpoints with a fsdprun.json (0: keeps all); what
/// has none was put there by others and is neither removed nor counted. `published` stays in any
/// case. Never throws; warns of what cannot be removed, and removes none when the claim is lost.
void Prune(FileSystem& file_system, const std::string& directory, const Claim& claim, int64_t keep,
           const std::string& published, const Warn& warn);

}  // namespace fsdprun::worker::checkpoint
