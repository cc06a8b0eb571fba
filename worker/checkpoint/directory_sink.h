#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/claim.h"
#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/dcp_metadata.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/rank_file.h"
#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// A directory that takes a job's checkpoints, as one rank sees it: Note [Commit protocol] and Note
/// [Fencing by claim]. Nothing here communicates; one save is Prepare() on rank 0, Write() on every
/// rank, Publish(), Retire() and Remove() on rank 0, or Discard() in place of what is left of them
/// after an error. Errors: CheckpointError. Thread: one at a time.
class DirectorySink {
 public:
  /// `options.group` is not used. `steps`: what rank 0 remembers of the directory.
  DirectorySink(const SaverOptions& options, std::shared_ptr<StepList> steps, Warn warn);

  /// Rank 0: claims the directory, and returns what the other ranks Join() with. May wait for
  /// claim_timeout. Errors: ClaimHeldError as well.
  std::string Acquire();
  void Join(const std::string& claim_id) { claim_.id = claim_id; }

  /// `needed_bytes`: what all ranks are going to write; it may be a little less. Errors also if
  /// `run` must not replace what the step's name has now, if there is no room (ENOSPC), or if the
  /// claim is lost.
  void Prepare(int64_t step, const std::string& run, int64_t needed_bytes);
  ManifestFile Write(int64_t step, int64_t rank, const std::vector<BlobToWrite>& blobs);
  /// Fills in what the manifest says of the launch; returns the path.
  std::string Publish(Manifest manifest, const DcpMetadata& metadata);
  /// Removes what Prepare() and Write() have left. What cannot be removed now, and what another
  /// rank, which has not heard of it yet, writes afterwards, the next Prepare() removes, or the
  /// next start.
  void Discard(int64_t step);
  /// Returns what Remove() has to remove, which may take long. Both throw nothing, since the
  /// checkpoint is there: what they meet is told.
  std::vector<std::string> Retire(const std::string& run, const std::string& published);
  /// In any thread, also beside the next save unless that is of the same step.
  void Remove(const std::vector<std::string>& retired);

  /// Errors: CheckpointError unless the claim is still this launch's.
  void CheckHeld() const { CheckClaim(dir_, claim_, "save"); }
  bool IsReplaced() const;
  void Release();

 private:
  std::string TemporaryPath(int64_t step) const { return dir_ + "/" + TemporaryName(step, claim_); }
  /// A run that is not known has the launch's name.
  std::string RunOf(const std::string& given) const {
    return given.empty() ? claim_.job_id : given;
  }
  int64_t ChooseSequence();
  void CleanUpUnsynced();
  void CleanUpDiscarded();

  const std::string dir_;
  const int64_t keep_;
  const int64_t keep_every_;
  const std::chrono::milliseconds claim_timeout_;
  const bool takes_over_;
  const std::shared_ptr<FileSystem> file_system_;
  const std::shared_ptr<StepList> steps_;
  const Warn warn_;
  Claim claim_;
  // Of rank 0.
  std::optional<ClaimPulse> pulse_;
  /// Of the next publication, since the first Prepare().
  std::optional<int64_t> next_sequence_;
  /// After an UnsyncedPublication, until CleanUp().
  bool is_unsynced_ = false;
  /// Since the last Prepare().
  std::optional<int64_t> discarded_;
};

}  // namespace fsdprun::checkpoint
