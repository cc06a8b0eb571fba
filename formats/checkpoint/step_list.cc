#include "formats/checkpoint/step_list.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"

namespace fsdprun::checkpoint {

std::vector<StepEntry> FindSteps(const std::string& directory) {
  std::vector<StepEntry> entries;
  for (const std::string& name : ListDirectory(directory)) {
    const std::string path = directory + "/" + name;
    std::optional<int64_t> step = ParseStepName(name);
    if (const auto replaced = LeftoverStep(name, "old-");
        replaced && !DirectoryExists(directory + "/" + StepName(*replaced))) {
      step = replaced;
    }
    if (step && DirectoryExists(path)) {
      entries.push_back({path, *step, FileExists(path + "/" + kMetadataFile), 0, {}, {}, false});
    }
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

std::vector<StepEntry> StepList::List(const std::string& directory) {
  std::vector<StepEntry> entries = FindSteps(directory);
  const Manifests known = std::exchange(known_[directory], {});
  for (StepEntry& entry : entries) {
    const std::string manifest = entry.path + "/" + kManifestFile;
    if (!FileExists(manifest)) {
      continue;
    }
    try {
      const Known read = Read(manifest, known);
      entry.sequence = read.sequence;
      entry.job_id = read.job_id;
      entry.run = read.run;
      const auto damaged = damaged_.find(entry.path);
      entry.is_damaged = damaged != damaged_.end() && damaged->second == read.sequence;
      known_[directory].emplace(manifest, read);
    } catch (const CheckpointError&) {
      entry.sequence.reset();
    }
  }
  std::sort(entries.begin(), entries.end(), [](const StepEntry& a, const StepEntry& b) {
    constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();
    return std::pair(a.sequence.value_or(kUnknown), a.step) >
           std::pair(b.sequence.value_or(kUnknown), b.step);
  });
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
  return StepList().List(directory);
}

}  // namespace fsdprun::checkpoint
