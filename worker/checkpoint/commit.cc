#include "worker/checkpoint/commit.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <limits>
#include <nlohmann/json.hpp>

#include "worker/checkpoint/error.h"

namespace fsdprun::worker::checkpoint {
namespace {

using nlohmann::json;

constexpr int64_t kClaimBytesMax = 64 << 10;
constexpr size_t kClaimIdDigits = 16;

std::string ClaimPath(const std::string& directory) { return directory + "/.claim"; }

/// nullopt when there is none or it cannot be parsed: then nobody holds a claim.
std::optional<Claim> ReadClaim(const std::string& directory) {
  if (!FileExists(ClaimPath(directory))) {
    return std::nullopt;
  }
  const json value =
      json::parse(ReadWholeFile(ClaimPath(directory), kClaimBytesMax), nullptr, false);
  try {
    return Claim{value.at("job_id").get<std::string>(), value.at("generation").get<uint64_t>(),
                 value.at("claim").get<std::string>()};
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

std::string Describe(const Claim& claim) {
  return "job '" + claim.job_id + "', generation " + std::to_string(claim.generation);
}

bool IsClaimId(std::string_view text) {
  return text.size() == kClaimIdDigits &&
         text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// "step-N.tmp-<generation>-<claim>", "step-N.old-<claim>", "step-N.delete-<claim>", for `kind`
/// "tmp-", "old-" or "delete-"; returns N. Not what a user has named step-N.old-backup.
std::optional<int64_t> LeftoverStep(std::string_view name, std::string_view kind) {
  const size_t dot = name.find('.');
  if (dot == std::string_view::npos || !name.substr(dot + 1).starts_with(kind)) {
    return std::nullopt;
  }
  std::string_view rest = name.substr(dot + 1 + kind.size());
  if (kind == "tmp-") {
    const size_t dash = rest.find_first_not_of("0123456789");
    if (dash == 0 || dash == std::string_view::npos || rest[dash] != '-') {
      return std::nullopt;
    }
    rest.remove_prefix(dash + 1);
  }
  return IsClaimId(rest) ? ParseStepName(name.substr(0, dot)) : std::nullopt;
}

/// Where the file system cannot swap two directories, publishing takes two renames; a crash between
/// them leaves the replaced checkpoint under its ".old-" name and nothing under its own.
void RestoreReplaced(FileSystem& file_system, const std::string& directory, const Warn& warn) {
  for (const std::string& name : ListDirectory(directory)) {
    const std::optional<int64_t> step = LeftoverStep(name, "old-");
    if (!step) {
      continue;
    }
    const std::string path = directory + "/" + StepName(*step);
    if (!DirectoryExists(path) && FileExists(directory + "/" + name + "/" + kMetadataFile)) {
      CheckIo(file_system.Rename(directory + "/" + name, path), "restore", path);
      warn("restored " + path + ": a crash had interrupted its replacement");
    }
  }
}

void RemoveLeftovers(FileSystem& file_system, const std::string& directory, const Warn& warn) {
  for (const std::string& name : ListDirectory(directory)) {
    const bool is_leftover =
        LeftoverStep(name, "tmp-") || LeftoverStep(name, "old-") || LeftoverStep(name, "delete-");
    if (!is_leftover) {
      continue;
    }
    const std::string path = directory + "/" + name;
    if (const int error = file_system.RemoveTree(path); error != 0) {
      warn(DescribeIoError("remove the left-over", path, error));
    }
  }
}

/// Also syncs the directory, which makes a dead run's renames durable before its leftovers are
/// removed. If the disk is full, perhaps with these, they are removed first.
void WriteClaim(FileSystem& file_system, const std::string& directory, const std::string& text,
                const Warn& warn) {
  try {
    file_system.ReplaceFile(ClaimPath(directory), text);
    return;
  } catch (const CheckpointError& error) {
    if (error.error_number() != ENOSPC && error.error_number() != EDQUOT) {
      throw;
    }
  }
  CheckIo(file_system.SyncDirectory(directory), "sync", directory);
  RestoreReplaced(file_system, directory, warn);
  RemoveLeftovers(file_system, directory, warn);
  file_system.ReplaceFile(ClaimPath(directory), text);
}

/// The name of a checkpoint during its replacement, if the file system cannot swap.
std::string ReplacedName(const std::string& target, const Claim& claim) {
  return target + ".old-" + claim.id;
}

int64_t NextSequence(const std::string& directory) {
  int64_t newest = 0;
  for (const StepEntry& entry : ListSteps(directory)) {
    newest = std::max(newest, entry.sequence.value_or(0));
  }
  return newest + 1;
}

/// Renames the complete `temporary` to `target` and replaces an earlier checkpoint of that name,
/// unless it is of others.
void MoveIntoPlace(FileSystem& file_system, const std::string& temporary, const std::string& target,
                   const Claim& claim) {
  CheckReplaceable(target);
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

void CheckClaim(const std::string& directory, const Claim& claim, const std::string& action) {
  const std::optional<Claim> current = ReadClaim(directory);
  if (!current || *current != claim) {
    throw CheckpointError("cannot " + action + " in " + directory + ": " +
                          (current ? Describe(*current) + " has claimed it since"
                                   : "its claim file has been removed or damaged") +
                          "; this process (" + Describe(claim) + ") is stale and should end");
  }
}

/// Renames all but the newest `keep` complete checkpoints of ours and returns the new names, which
/// are durable: a half-removed checkpoint is never taken for one. Under the lock, since a successor
/// may publish.
std::vector<std::string> RenameForRemoval(FileSystem& file_system, const std::string& directory,
                                          const Claim& claim, int64_t keep,
                                          const std::string& published, const Warn& warn) {
  const DirectoryLock lock(file_system, directory);
  CheckClaim(directory, claim, "prune");
  std::vector<std::string> to_remove;
  int64_t kept = 0;
  for (const StepEntry& entry : ListSteps(directory)) {
    const bool is_ours = entry.sequence.value_or(0) > 0;
    if (!entry.is_complete || !is_ours || ++kept <= keep || entry.path == published) {
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

std::string TemporaryName(int64_t step, const Claim& claim) {
  return StepName(step) + ".tmp-" + std::to_string(claim.generation) + "-" + claim.id;
}

void CheckReplaceable(const std::string& target) {
  if (!DirectoryExists(target) || FileExists(target + "/" + kManifestFile)) {
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
  return 0;
}

void AcquireClaim(FileSystem& file_system, const std::string& directory, const Claim& claim,
                  const Warn& warn) {
  file_system.MakeDurableDirectory(directory);
  const DirectoryLock lock(file_system, directory);
  const std::optional<Claim> current = ReadClaim(directory);
  if (current && !claim.job_id.empty() && current->job_id == claim.job_id &&
      current->generation > claim.generation) {
    throw CheckpointError("cannot use " + directory + ": " + Describe(*current) +
                          " has claimed it, and this process is of the older generation " +
                          std::to_string(claim.generation) +
                          " of the same job, so it is stale and should end; if nothing of that job "
                          "runs any more, remove " +
                          ClaimPath(directory));
  }
  const json value = {
      {"job_id", claim.job_id}, {"generation", claim.generation}, {"claim", claim.id}};
  WriteClaim(file_system, directory, value.dump() + "\n", warn);
  RestoreReplaced(file_system, directory, warn);
  RemoveLeftovers(file_system, directory, warn);
}

std::string Publish(FileSystem& file_system, const std::string& directory, const Claim& claim,
                    const std::string& metadata_bytes, Manifest manifest, const Warn& warn) {
  const std::string temporary = directory + "/" + TemporaryName(manifest.step, claim);
  std::string target = directory + "/" + StepName(manifest.step);
  const DirectoryLock lock(file_system, directory);
  CheckClaim(directory, claim, "publish");
  manifest.sequence = NextSequence(directory);
  manifest.files[kMetadataFile] = {
      static_cast<int64_t>(metadata_bytes.size()), HashBytes(metadata_bytes), {}};
  file_system.WriteFile(temporary + "/" + kManifestFile, EncodeManifest(manifest));
  file_system.WriteFile(temporary + "/" + kMetadataFile, metadata_bytes);
  CheckIo(file_system.SyncDirectory(temporary), "sync", temporary);
  MoveIntoPlace(file_system, temporary, target, claim);
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

std::vector<StepEntry> ListSteps(const std::string& directory) {
  std::vector<StepEntry> entries;
  for (const std::string& name : ListDirectory(directory)) {
    const std::optional<int64_t> step = ParseStepName(name);
    const std::string path = directory + "/" + name;
    if (!step || !DirectoryExists(path)) {
      continue;
    }
    StepEntry entry{path, *step, FileExists(path + "/" + kMetadataFile), 0, {}};
    const std::string manifest = path + "/" + kManifestFile;
    if (FileExists(manifest)) {
      try {
        Manifest decoded = DecodeManifest(ReadWholeFile(manifest, kManifestBytesMax), manifest);
        entry.sequence = decoded.sequence;
        entry.job_id = std::move(decoded.job_id);
      } catch (const CheckpointError&) {
        entry.sequence.reset();
      }
    }
    entries.push_back(std::move(entry));
  }
  std::sort(entries.begin(), entries.end(), [](const StepEntry& a, const StepEntry& b) {
    constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
    return std::pair(a.sequence.value_or(kUnknown), a.step) >
           std::pair(b.sequence.value_or(kUnknown), b.step);
  });
  return entries;
}

void Prune(FileSystem& file_system, const std::string& directory, const Claim& claim, int64_t keep,
           const std::string& published, const Warn& warn) {
  // A swap leaves the replaced checkpoint under the temporary name.
  const std::string temporary =
      directory + "/" +
      TemporaryName(*ParseStepName(published.substr(published.find_last_of('/') + 1)), claim);
  std::vector<std::string> to_remove = {temporary, ReplacedName(published, claim)};
  if (keep > 0) {
    try {
      const std::vector<std::string> old =
          RenameForRemoval(file_system, directory, claim, keep, published, warn);
      to_remove.insert(to_remove.end(), old.begin(), old.end());
    } catch (const CheckpointError& error) {
      warn(std::string("removed no old checkpoints: ") + error.what());
    }
  }
  for (const std::string& path : to_remove) {
    if (const int error = file_system.RemoveTree(path); error != 0) {
      warn(DescribeIoError("remove", path, error));
    }
  }
}

}  // namespace fsdprun::worker::checkpoint
