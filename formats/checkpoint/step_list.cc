#include "formats/checkpoint/step_list.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"

namespace fsdprun::checkpoint {
namespace {

enum class Sight { kAbsent, kThere, kDamaged };

/// What `exists` says of a path, unless that is damaged. Errors: CheckpointError.
Sight LookAt(const std::string& path, bool (*exists)(const std::string&)) {
  try {
    return exists(path) ? Sight::kThere : Sight::kAbsent;
  } catch (const CheckpointError& error) {
    if (!IsDamage(error.error_number())) {
      throw;
    }
    return Sight::kDamaged;
  }
}

bool IsNewer(const StepEntry& a, const StepEntry& b) {
  constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
  return std::pair(a.sequence.value_or(kUnknown), a.step) >
         std::pair(b.sequence.value_or(kUnknown), b.step);
}

}  // namespace

std::vector<StepEntry> FindSteps(const std::string& directory) {
  std::vector<StepEntry> entries;
  for (const std::string& name : ListDirectory(directory)) {
    const std::string path = directory + "/" + name;
    std::optional<int64_t> step = ParseStepName(name);
    if (const auto replaced = LeftoverStep(name, "old-");
        replaced &&
        LookAt(directory + "/" + StepName(*replaced), DirectoryExists) == Sight::kAbsent) {
      step = replaced;
    }
    const Sight folder = step ? LookAt(path, DirectoryExists) : Sight::kAbsent;
    if (folder == Sight::kAbsent) {
      continue;
    }
    const Sight metadata = LookAt(path + "/" + kMetadataFile, FileExists);
    const bool is_damaged = folder == Sight::kDamaged || metadata == Sight::kDamaged;
    entries.push_back({path, *step, metadata != Sight::kAbsent, 0, {}, {}, is_damaged});
  }
  return entries;
}

StepList::Known StepList::Read(const std::string& manifest, const Manifests& known) {
  const InputFile file(manifest);
  const Identity identity{file.inode(), file.size(), file.modified_ns()};
  const auto found = known.find(manifest);
  if (found != known.end() && found->second.identity == identity) {
    return found->second;
  }
  Manifest decoded = DecodeManifest(ReadWholeFile(file, kManifestBytesMax), manifest);
  return {identity, decoded.sequence, std::move(decoded.job_id), std::move(decoded.run)};
}

void StepList::Describe(const std::string& manifest, const Manifests& known, Manifests& listed,
                        StepEntry& entry) const {
  if (!FileExists(manifest)) {
    return;
  }
  const Known read = Read(manifest, known);
  entry.sequence = read.sequence;
  entry.job_id = read.job_id;
  entry.run = read.run;
  const auto damaged = damaged_.find(entry.path);
  entry.is_damaged =
      entry.is_damaged || (damaged != damaged_.end() && damaged->second == read.sequence);
  listed.emplace(manifest, read);
}

std::vector<StepEntry> StepList::ListAs(const std::string& directory, OnFault on_fault) {
  std::vector<StepEntry> entries = FindSteps(directory);
  Manifests& known = known_[directory];
  Manifests listed;
  for (StepEntry& entry : entries) {
    try {
      Describe(entry.path + "/" + kManifestFile, known, listed, entry);
    } catch (const CheckpointError& error) {
      if (on_fault == OnFault::kThrow && !IsDamage(error.error_number())) {
        throw;  // what was known still is
      }
      entry.sequence.reset();
    }
  }
  known = std::move(listed);
  std::sort(entries.begin(), entries.end(), IsNewer);
  return entries;
}

void StepList::NoteDamaged(const std::string& path) {
  const std::string manifest = path + "/" + kManifestFile;
  for (const auto& [directory, manifests] : known_) {
    if (const auto known = manifests.find(manifest); known != manifests.end()) {
      damaged_[path] = known->second.sequence;
    }
  }
}

std::vector<StepEntry> ListSteps(const std::string& directory) {
  return StepList().ListAs(directory, StepList::OnFault::kPassOver);
}

}  // namespace fsdprun::checkpoint
