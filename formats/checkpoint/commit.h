#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/step_list.h"

namespace fsdprun::checkpoint {

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

using Warn = std::function<void(const std::string&)>;

std::string StepName(int64_t step);
/// The step of a directory name "step-<N>", N without leading zeros; else nullopt.
std::optional<int64_t> ParseStepName(std::string_view name);
std::string TemporaryName(int64_t step, const Claim& claim);

/// A save of `run` may replace what a Saver has written for it, of whatever launch and however
/// damaged, and what is not there. Errors: CheckpointError if `target` is a directory without
/// fsdprun.json, which others have put there, or of another run. Where either run is empty
/// (unknown), they count as the same.
void CheckReplaceable(const std::string& target, const std::string& run);

/// Removes what an attempt to save `step` left; 0 or an errno, also where it cannot be told what is
/// there. Not after UnsyncedPublication: then that is the checkpoint which was replaced.
int RemoveAttempt(FileSystem& file_system, const std::string& directory, int64_t step,
                  const Claim& claim);

/// For `kind` "tmp-", "old-" or "delete-": the step of a name that a Saver gives to what it moves
/// aside or has not finished, "step-N.old-<claim>". Not of what a user has named step-N.old-backup.
std::optional<int64_t> LeftoverStep(std::string_view name, std::string_view kind);

/// Of a file that is written to see whether others see it, or whether that can be done, and then
/// removed: ".probe-" and 16 hex digits.
std::string ProbeName();
bool IsProbeName(std::string_view name);

/// A start that was killed leaves its probe. One that lives may be of another start, whose ranks
/// are just looking for it: what has been there for so long before the claim is nobody's.
constexpr auto kProbeAgeMax = std::chrono::hours(1);

struct ClaimRequest {
  Claim claim;
  /// A claim of another launch is taken over when it has not been renewed for so long.
  std::chrono::milliseconds timeout = kClaimTimeout;
  /// At once.
  bool takes_over = false;
};

/// Rank 0, once it has loaded: makes `directory`, claims it, restores a checkpoint whose
/// replacement a crash interrupted, and removes what dead runs left. Waits for the claim of another
/// launch as Note [Fencing by claim] says, which it tells once. Returns the open claim file, for
/// ClaimPulse. Errors: ClaimHeldError; CheckpointError. Then nothing was changed, unless a call
/// failed.
FileDescriptor AcquireClaim(FileSystem& file_system, const std::string& directory,
                            const ClaimRequest& request, const Warn& warn);

/// What AcquireClaim waits for, without changing anything: returns when the directory could be
/// claimed, also where there is none yet. Errors: as AcquireClaim's.
void AwaitClaimable(const std::string& directory, const ClaimRequest& request, const Warn& warn);

/// For the holder of `claim`, after UnsyncedPublication: syncs the directory, and restores and
/// removes as AcquireClaim does. Errors: CheckpointError.
void CleanUp(FileSystem& file_system, const std::string& directory, const Claim& claim,
             const Warn& warn);

/// Published, but a power failure may undo it. Nothing that it replaced may be removed before
/// CleanUp or a new Saver has synced the directory: having reported the error once, Linux lets a
/// second sync succeed that has written nothing.
class UnsyncedPublication : public CheckpointError {
 public:
  using CheckpointError::CheckpointError;
};

/// Manifest::sequence of the next publication in `directory`, as its checkpoints tell. Errors:
/// CheckpointError, also if they cannot tell it for now.
int64_t NextSequence(StepList& steps, const std::string& directory);

/// Rank 0, step 2 of the protocol. Returns the published path. Errors: CheckpointError; earlier
/// checkpoints are untouched then, and nothing is published unless the error is
/// UnsyncedPublication. A `latest` that could not be written is only a warning.
std::string Publish(FileSystem& file_system, const std::string& directory, const Claim& claim,
                    const std::string& metadata_bytes, Manifest manifest, const Warn& warn);

/// What a Saver keeps.
struct Retention {
  int64_t keep = 0;        // how many; 0: all
  int64_t keep_every = 0;  // and for ever those of the steps that it divides; 0: none
  std::string run;         // of these; see State
};

/// Step 3 of the protocol without the removal: renames all but the newest complete checkpoints of
/// the run, so that nobody takes them for one any more; what others have written, or other runs, is
/// neither renamed nor counted. `published` stays in any case. Returns what is to be removed now,
/// also what `published` has replaced. Never throws; warns of what cannot be renamed, and renames
/// none when the claim is lost.
std::vector<std::string> Retire(FileSystem& file_system, const std::string& directory,
                                const Claim& claim, const Retention& retention,
                                const std::string& published, StepList& steps, const Warn& warn);

/// Removes what Retire() has returned, which may take long. Never throws; warns of what cannot be
/// removed. Thread: any.
void RemoveRetired(FileSystem& file_system, const std::vector<std::string>& paths,
                   const Warn& warn);

}  // namespace fsdprun::checkpoint
