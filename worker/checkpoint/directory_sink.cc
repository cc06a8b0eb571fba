#include "worker/checkpoint/directory_sink.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/patience.h"

namespace fsdprun::checkpoint {

DirectorySink::DirectorySink(const SaverOptions& options, std::shared_ptr<StepList> steps,
                             Warn warn)
    : dir_(options.dir),
      keep_(options.keep),
      keep_every_(options.keep_every),
      claim_timeout_(options.claim_timeout),
      takes_over_(options.takes_over),
      file_system_(options.file_system ? options.file_system : std::make_shared<FileSystem>()),
      steps_(std::move(steps)),
      warn_(std::move(warn)),
      claim_(MakeClaim(options.job_id, options.generation, options.claim_timeout)) {}

std::string DirectorySink::Acquire() {
  FileDescriptor file =
      AcquireClaim(*file_system_, dir_, {claim_, claim_timeout_, takes_over_}, warn_);
  pulse_.emplace(file_system_, std::move(file), PulseInterval(claim_timeout_));
  return claim_.id;
}

void DirectorySink::Prepare(int64_t step, const std::string& run, int64_t needed_bytes) {
  CheckHeld();  // before the bytes are written
  CleanUpUnsynced();
  CleanUpDiscarded();
  if (!next_sequence_) {
    next_sequence_ = ReadPatiently(warn_, [this] { return NextSequence(*steps_, dir_); });
  }
  CheckReplaceable(dir_ + "/" + StepName(step), RunOf(run));
  const std::string path = TemporaryPath(step);
  CheckIo(RemoveAttempt(*file_system_, dir_, step, claim_), "remove", path);
  CheckRoom(*file_system_, path, needed_bytes);
  CheckIo(file_system_->MakeDirectory(path), "make the directory", path);
}

ManifestFile DirectorySink::Write(int64_t step, int64_t rank,
                                  const std::vector<BlobToWrite>& blobs) {
  return WriteRankFile(*file_system_, TemporaryPath(step), rank, blobs);
}

std::string DirectorySink::Publish(Manifest manifest, const DcpMetadata& metadata) {
  manifest.generation = claim_.generation;
  manifest.job_id = claim_.job_id;
  manifest.run = RunOf(manifest.run);
  const int64_t sequence = ChooseSequence();
  manifest.sequence = sequence;
  try {
    std::string path = checkpoint::Publish(*file_system_, dir_, claim_, EncodeDcpMetadata(metadata),
                                           std::move(manifest), warn_);
    next_sequence_ = sequence + 1;
    return path;
  } catch (const UnsyncedPublication&) {
    next_sequence_ = sequence + 1;
    is_unsynced_ = true;
    throw;
  }
}

/// Since the claim nobody else publishes: what cannot be looked at for now has no higher number,
/// and is no reason to throw away the files that all ranks have written.
int64_t DirectorySink::ChooseSequence() {
  try {
    return std::max(next_sequence_.value_or(0), NextSequence(*steps_, dir_));
  } catch (const CheckpointError& error) {
    if (!next_sequence_ || !MayPass(error.error_number())) {
      throw;
    }
    return *next_sequence_;
  }
}

void DirectorySink::Discard(int64_t step) {
  if (!is_unsynced_) {  // else it is the checkpoint that was replaced
    discarded_ = step;
    RemoveAttempt(*file_system_, dir_, step, claim_);
  }
}

std::vector<std::string> DirectorySink::Retire(const std::string& run,
                                               const std::string& published) {
  try {
    return checkpoint::Retire(*file_system_, dir_, claim_, {keep_, keep_every_, RunOf(run)},
                              published, *steps_, warn_);
  } catch (const std::exception& error) {
    warn_(std::string("removed no old checkpoints: ") + error.what());
    return {};
  }
}

void DirectorySink::Remove(const std::vector<std::string>& retired) {
  try {
    RemoveRetired(*file_system_, retired, warn_);
  } catch (const std::exception& error) {
    warn_(std::string("left old checkpoints, which the next start removes: ") + error.what());
  }
}

void DirectorySink::CleanUpUnsynced() {
  if (is_unsynced_) {
    CleanUp(*file_system_, dir_, claim_, warn_);
    is_unsynced_ = false;
  }
}

/// A rank that was cancelled may have gone on for a while, and has ended its part by now.
void DirectorySink::CleanUpDiscarded() {
  if (discarded_) {
    RemoveAttempt(*file_system_, dir_, *discarded_, claim_);
    discarded_.reset();
  }
}

bool DirectorySink::IsReplaced() const {
  try {
    const std::optional<ClaimSight> current = LookAtClaim(dir_);
    return current && current->claim.id != claim_.id;
  } catch (const CheckpointError&) {
    return false;
  }
}

void DirectorySink::Release() {
  if (pulse_) {
    pulse_->Release();
  }
}

}  // namespace fsdprun::checkpoint
