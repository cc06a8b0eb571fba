#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace fsdprun::checkpoint {

/// A directory `step-<N>`, or the only copy of one whose replacement a crash interrupted.
struct StepEntry {
  std::string path;
  int64_t step = 0;
  bool is_complete = false;         // has .metadata
  std::optional<int64_t> sequence;  // 0: there is no fsdprun.json; absent: it cannot be read
  std::string job_id;               // empty: unknown
  std::string run;                  // empty: unknown
  bool is_damaged = false;          // cannot be looked at, or StepList::NoteDamaged has told it
};

/// Lists checkpoints again and again: a start does it several times and each save twice. Reading
/// the fsdprun.json of all, megabytes each in a large job, would take longer with every checkpoint
/// that is kept, so what was read is remembered as long as the file is the same. Thread: one.
class StepList {
 public:
  /// As ListSteps. Errors: CheckpointError also if a fsdprun.json cannot be read for now: what it
  /// says decides what is resumed, and what number the next publication has.
  std::vector<StepEntry> List(const std::string& directory) {
    return ListAs(directory, OnFault::kThrow);
  }
  /// Of a checkpoint that was listed: it cannot be loaded. Until another is published in its place.
  void NoteDamaged(const std::string& path);

 private:
  friend std::vector<StepEntry> ListSteps(const std::string& directory);
  /// What becomes of a list if a fsdprun.json cannot be read for now.
  enum class OnFault { kThrow, kPassOver };
  /// Of a file: a write, or another file of its name, changes one of them.
  struct Identity {
    uint64_t inode = 0;
    int64_t size = 0;
    int64_t modified_ns = 0;
    bool operator==(const Identity&) const = default;
  };
  struct Known {
    Identity identity;
    int64_t sequence = 0;
    std::string job_id;
    std::string run;
  };
  using Manifests = std::map<std::string, Known>;  // by path
  /// What the fsdprun.json of a checkpoint says. Errors: CheckpointError.
  static Known Read(const std::string& manifest, const Manifests& known);
  /// Fills in what the fsdprun.json says, if there is one, and notes that in `listed`. Errors: as
  /// Read.
  void Describe(const std::string& manifest, const Manifests& known, Manifests& listed,
                StepEntry& entry) const;
  std::vector<StepEntry> ListAs(const std::string& directory, OnFault on_fault);

  std::map<std::string, Manifests> known_;  // by directory; those that its last list had
  std::map<std::string, int64_t> damaged_;  // sequence by path
};

/// All of them in the order of their names, without what their fsdprun.json says. What is so
/// damaged that it cannot be looked at counts as complete, so that it is tried and told. Errors:
/// CheckpointError if the directory, or what is in it, cannot be looked at for now.
std::vector<StepEntry> FindSteps(const std::string& directory);

/// Newest first: by publication, then by step. An entry whose fsdprun.json is damaged counts as
/// newer than all, so that it is tried and reported rather than overlooked; so does here one that
/// cannot be read for now.
std::vector<StepEntry> ListSteps(const std::string& directory);

}  // namespace fsdprun::checkpoint
