#include "formats/checkpoint/commit.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <nlohmann/json.hpp>

#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {
namespace {

constexpr size_t kClaimIdDigits = 16;
constexpr char kProbePrefix[] = ".probe-";

bool IsClaimId(std::string_view text) {
  return text.size() == kClaimIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The name of a checkpoint during its replacement, if the file system cannot swap.
std::string ReplacedName(const std::string& target, const Claim& claim) {
  return target + ".old-" + claim.id;
}

/// Empty: unknown, or damaged.
std::string RunOf(const std::string& checkpoint) {
  const std::string path = checkpoint + "/" + kManifestFile;
  try {
    return DecodeManifest(ReadWholeFile(path, kManifestBytesMax), path).run;
  } catch (const CheckpointError& error) {
    if (MayPass(error.error_number())) {
      throw;  // it may be another's
    }
    return {};
  }
}

/// Renames the complete `temporary` to `target` and replaces an earlier checkpoint of that name,
/// unless it is of others.
void MoveIntoPlace(FileSystem& file_system, const std::string& temporary, const std::string& target,
                   const Claim& claim, const std::string& run) {
  CheckReplaceable(target, run);
  if (!DirectoryExists(target)) {
    CheckIo(file_system.Rename(temporary, target), "publish", target);
    return;
  }
  const int error = file_system.Exchange(temporary, target);
  if (error == 0) {
    return;
  }
  if (error != EINVAL && error != ENOSYS && error != ENOTSUP) {
    CheckIo(error, "publish", target);
  }
  const std::string old = ReplacedName(target, claim);
  CheckIo(file_system.Rename(target, old), "move aside", target);
  if (const int failed = file_system.Rename(temporary, target); failed != 0) {
    file_system.Rename(old, target);
    CheckIo(failed, "publish", target);
  }
}

bool IsKeptForEver(int64_t step, const Retention& retention) {
  return retention.keep_every > 0 && step % retention.keep_every == 0;
}

/// Renames all but what is kept of the run's complete checkpoints and returns the new names, which
/// are durable: a half-removed checkpoint is never taken for one. Under the lock, since a successor
/// may publish.
std::vector<std::string> RenameForRemoval(FileSystem& file_system, const std::string& directory,
                                          const Claim& claim, const Retention& retention,
                                          const std::string& published, StepList& steps,
                                          const Warn& warn) {
  const DirectoryLock lock(file_system, directory);
  CheckClaim(directory, claim, "prune");
  std::vector<std::string> to_remove;
  int64_t kept = 0;
  for (const StepEntry& entry : steps.List(directory)) {
    const bool is_ours =
        entry.path == published ||
        (entry.sequence.value_or(0) > 0 && !entry.run.empty() && entry.run == retention.run);
    // One that is damaged is none of those that are kept, but may still be of use to somebody.
    const bool must_stay = entry.is_damaged && kept < retention.keep;
    if (!entry.is_complete || !is_ours || must_stay || ++kept <= retention.keep ||
        entry.path == published || IsKeptForEver(entry.step, retention)) {
      continue;
    }
    const std::string renamed = entry.path + ".delete-" + claim.id;
    if (const int error = file_system.Rename(entry.path, renamed); error != 0) {
      warn(DescribeIoError("remove the old checkpoint", entry.path, error));
      continue;
    }
    to_remove.push_back(renamed);
  }
  if (!to_remove.empty()) {
    CheckIo(file_system.SyncDirectory(directory), "sync", directory);
  }
  return to_remove;
}

}  // namespace

std::string StepName(int64_t step) { return "step-" + std::to_string(step); }

std::optional<int64_t> ParseStepName(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  if (!name.starts_with(kPrefix)) {
    return std::nullopt;
  }
  const std::string_view digits = name.substr(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), step);
  if (error != std::errc() || step < 0 || StepName(step) != name) {
    return std::nullopt;
  }
  return step;
}

std::optional<int64_t> LeftoverStep(std::string_view name, std::string_view kind) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || !name.substr(dot + 1).starts_with(kind)) {
    return std::nullopt;
  }
  std::string_view rest = name.substr(dot + 1 + kind.size());
  if (kind == "tmp-") {  // <generation>-<claim>
    const size_t dash = rest.find_first_not_of("0123456789");
    if (dash == 0 || dash == std::string_view::npos || rest[dash] != '-') {
      return std::nullopt;
    }
    rest.remove_prefix(dash + 1);
  }
  return IsClaimId(rest) ? ParseStepName(name.substr(0, dot)) : std::nullopt;
}

std::string ProbeName() { return kProbePrefix + RandomId(); }

bool IsProbeName(std::string_view name) {
  return name.starts_with(kProbePrefix) && IsClaimId(name.substr(sizeof kProbePrefix - 1));
}

std::string TemporaryName(int64_t step, const Claim& claim) {
  return StepName(step) + ".tmp-" + std::to_string(claim.generation) + "-" + claim.id;
}

void CheckReplaceable(const std::string& target, const std::string& run) {
  if (!DirectoryExists(target)) {
    return;
  }
  if (FileExists(target + "/" + kManifestFile)) {
    const std::string other = RunOf(target);
    if (!other.empty() && !run.empty() && other != run) {
      throw CheckpointError("refused to replace " + target +
                            ": it is a checkpoint of another run; move it away, choose another "
                            "checkpoint.dir, or resume from it");
    }
    return;
  }
  const bool is_checkpoint = FileExists(target + "/" + kMetadataFile);
  throw CheckpointError("refused to replace " + target + ": it is a " +
                        (is_checkpoint ? "checkpoint" : "directory") +
                        " that another program made (it has no fsdprun.json); move it away or "
                        "choose another checkpoint.dir");
}

int RemoveAttempt(FileSystem& file_system, const std::string& directory, int64_t step,
                  const Claim& claim) {
  const std::string target = directory + "/" + StepName(step);
  try {
    for (const std::string& path :
         {directory + "/" + TemporaryName(step, claim), ReplacedName(target, claim)}) {
      if (!DirectoryExists(path)) {
        continue;
      }
      if (path == ReplacedName(target, claim) && !DirectoryExists(target)) {
        continue;  // not replaced yet: the only copy
      }
      if (const int error = file_system.RemoveTree(path); error != 0) {
        return error;
      }
    }
  } catch (const CheckpointError& error) {
    return error.error_number();  // what is there cannot be told
  }
  return 0;
}

int64_t NextSequence(StepList& steps, const std::string& directory) {
  int64_t newest = 0;
  for (const StepEntry& entry : steps.List(directory)) {
    newest = std::max(newest, entry.sequence.value_or(0));
  }
  if (newest >= kManifestNumberMax) {
    throw CheckpointError("cannot publish in " + directory + ": a checkpoint there has sequence " +
                          std::to_string(newest) + " in fsdprun.json, the highest; move it away");
  }
  return newest + 1;
}

std::string Publish(FileSystem& file_system, const std::string& directory, const Claim& claim,
                    const std::string& metadata_bytes, Manifest manifest, const Warn& warn) {
  const std::string temporary = directory + "/" + TemporaryName(manifest.step, claim);
  std::string target = directory + "/" + StepName(manifest.step);
  const DirectoryLock lock(file_system, directory);
  CheckClaim(directory, claim, "publish");
  manifest.files[kMetadataFile] = {
      static_cast<int64_t>(metadata_bytes.size()), HashBytes(metadata_bytes), {}};
  file_system.WriteFile(temporary + "/" + kManifestFile, EncodeManifest(manifest));
  file_system.WriteFile(temporary + "/" + kMetadataFile, metadata_bytes);
  CheckIo(file_system.SyncDirectory(temporary), "sync", temporary);
  MoveIntoPlace(file_system, temporary, target, claim, manifest.run);
  if (const int error = file_system.SyncDirectory(directory); error != 0) {
    throw UnsyncedPublication("published " + target + ", but a power failure may undo it: " +
                                  DescribeIoError("sync", directory, error),
                              error);
  }
  try {
    file_system.ReplaceFile(directory + "/latest", StepName(manifest.step) + "\n");
  } catch (const CheckpointError& error) {
    warn(std::string("published ") + target + ", but `latest` does not name it: " + error.what());
  }
  return target;
}

std::vector<std::string> Retire(FileSystem& file_system, const std::string& directory,
                                const Claim& claim, const Retention& retention,
                                const std::string& published, StepList& steps, const Warn& warn) {
  // A swap leaves the replaced checkpoint under the temporary name.
  const std::string temporary =
      directory + "/" +
      TemporaryName(*ParseStepName(published.substr(published.find_last_of('/') + 1)), claim);
  std::vector<std::string> retired = {temporary, ReplacedName(published, claim)};
  if (retention.keep > 0) {
    try {
      const std::vector<std::string> old =
          RenameForRemoval(file_system, directory, claim, retention, published, steps, warn);
      retired.insert(retired.end(), old.begin(), old.end());
    } catch (const CheckpointError& error) {
      warn(std::string("removed no old checkpoints: ") + error.what());
    }
  }
  return retired;
}

void RemoveRetired(FileSystem& file_system, const std::vector<std::string>& paths,
                   const Warn& warn) {
  for (const std::string& path : paths) {
    if (const int error = file_system.RemoveTree(path); error != 0) {
      warn(DescribeIoError("remove", path, error));
    }
  }
}

}  // namespace fsdprun::checkpoint
