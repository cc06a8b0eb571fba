#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/file_system.h"

namespace fsdprun::checkpoint {

/// A change to the disk; or, with a name of the test's own, something that a rank told its caller.
struct Record {
  int64_t rank = 0;
  std::string name;
  std::string path;
  std::string from;
  std::string bytes;
  int64_t byte_count = 0;

  bool IsSync() const { return name == "sync" || name == "sync_directory"; }
};

/// What the ranks of a run did to the disk, in order.
class RecordLog {
 public:
  void Add(Record record);
  /// To be called when the ranks have ended.
  const std::vector<Record>& records() const { return records_; }

 private:
  std::mutex mutex_;
  std::vector<Record> records_;
};

/// The file system of one rank: the real one, and a record of each change.
class RecordingFileSystem : public FileSystem {
 public:
  /// What becomes of a change: 0, or the errno that it fails with. May throw: the rank dies there.
  using Fate = std::function<int(const Record&)>;

  RecordingFileSystem(RecordLog& log, int64_t rank, Fate fate = nullptr)
      : log_(log), rank_(rank), fate_(std::move(fate)) {}

 protected:
  int Intercept(const Effect& effect) override;

 private:
  RecordLog& log_;
  int64_t rank_;
  Fate fate_;
};

/// Files by path below a directory; without content: a directory.
using Tree = std::map<std::string, std::optional<std::string>>;

/// The files below `directory`.
Tree ReadTree(const std::string& directory);
/// Makes the directory `directory` with these files.
void WriteTree(const Tree& tree, const std::string& directory);

// Note [What a power cut leaves]
// As POSIX has it, which promises less than any one file system keeps:
//   * Of a file, the bytes at its last sync. Of bytes written since, any part may be there; we try
//     none, the first half, zeros (blocks that were reserved but not written) and all.
//   * Of a directory, the names at its last sync. A later change of a name may be there or not,
//     also without the changes before it, except those of the same names: a create without the
//     rename after it, a removal without the rename before it in another directory. One rename or
//     swap is there as a whole or not at all.
//   * Ranks may be on different machines, so a sync of a directory makes durable what the rank
//     itself did there, and nothing that another did.

/// A directory tree in memory that is given the changes of a run and tells in which states it may
/// be found if the power goes.
class PowerLossDisk {
 public:
  /// `root` exists, durably and empty. All paths are below it.
  explicit PowerLossDisk(std::string root);

  /// Does nothing for names that are no change.
  void Apply(const Record& record);
  /// As running programs see it.
  Tree Now() const;
  /// After a power cut now. All states if few changes are not durable, else a sample: in order up
  /// to each change, each change alone, all without it, and some at random (the same every time).
  std::set<Tree> AfterPowerLoss() const;

 private:
  using NodeId = size_t;
  using Names = std::map<std::string, NodeId>;
  struct Node {
    bool is_directory = false;
    // Of a directory.
    Names names;
    Names durable_names;
    // Of a file.
    std::string bytes;
    std::string durable_bytes;
    size_t position = 0;  // where the next write goes
    bool is_dirty = false;
  };
  /// A change of names in one directory that need not be durable yet.
  struct Change {
    int64_t rank;
    NodeId directory;
    std::map<std::string, std::optional<NodeId>> names;
  };
  enum class Unsynced { kLost, kHalf, kZeros, kThere };

  std::vector<std::string> Parts(const std::string& path) const;
  NodeId Find(const std::vector<std::string>& parts) const;
  std::pair<NodeId, std::string> Locate(const std::string& path) const;
  void MakeDirectories(const Record& record);
  void Create(const Record& record);
  void Move(const Record& record);
  void Remove(int64_t rank, NodeId directory, const std::string& name);
  void SyncDirectory(int64_t rank, NodeId directory);
  void ChangeNames(Change change);

  static bool IsOrdered(const Change& a, const Change& b);
  static void MakeDurable(const Change& change, Names& names);
  std::set<std::vector<bool>> Survivors() const;
  void Collect(NodeId directory, const std::string& prefix, const std::vector<Names>& names,
               const std::function<std::string(NodeId)>& bytes, Tree& tree) const;
  std::string BytesAfter(NodeId file, Unsynced unsynced) const;

  std::string root_;
  std::vector<Node> nodes_;
  std::vector<Change> pending_;
};

}  // namespace fsdprun::checkpoint
