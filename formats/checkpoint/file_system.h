#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::checkpoint {

/// An owned file descriptor.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();
  int get() const { return fd_; }

 private:
  int fd_ = -1;
};

/// A change to the disk that is about to be made.
struct Effect {
  std::string_view name;     // the method below in snake case; RemoveTree: "remove"
  const std::string& path;   // of a rename and an exchange: the second path
  std::string_view from{};   // the first path of these two
  std::string_view bytes{};  // of a write
  int64_t byte_count = 0;    // of a reserve
};

/// All changes to the disk go through one of these, and each announces itself to Intercept first,
/// so that a test can record it, make it fail or die there. Methods return 0 or an errno.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  /// 0 as well if the directory is already there; parents are made too.
  int MakeDirectory(const std::string& path);
  int Create(const std::string& path, FileDescriptor& out);
  /// Reserves the space in advance, so that a full disk is reported before the first byte.
  int Reserve(const FileDescriptor& file, const std::string& path, int64_t byte_count);
  int Write(const FileDescriptor& file, const std::string& path, const void* data,
            size_t byte_count);
  int Sync(const FileDescriptor& file, const std::string& path);
  int SyncDirectory(const std::string& path);
  int Rename(const std::string& from, const std::string& to);
  /// Swaps two paths in one step. EINVAL or ENOSYS where the file system cannot.
  int Exchange(const std::string& a, const std::string& b);
  /// Removes a file or a directory with all that is in it. 0 as well if there is none.
  int RemoveTree(const std::string& path);

  /// Of the file system that `path` is or will be in: what may still be written by this user, where
  /// that can be told; quotas need not be in it. Changes nothing and is not announced.
  virtual std::optional<int64_t> FreeBytes(const std::string& path);

  enum class Pulse { kBeat, kNone };
  /// Sets the modification time of an open file: to now, or to 0. Changes no content and is not
  /// announced. Thread: any.
  virtual int SetPulse(const FileDescriptor& file, Pulse pulse);

  /// MakeDirectory, and SyncDirectory on its ancestors in the same file system, also on those that
  /// were there, since whoever made them need not have synced: a power failure does not undo it.
  /// Throws CheckpointError.
  void MakeDurableDirectory(const std::string& path);
  /// Create, Write, Sync. The name is durable only after SyncDirectory. Throws CheckpointError.
  void WriteFile(const std::string& path, std::string_view bytes);
  /// WriteFile to `path`.tmp, then Rename and SyncDirectory. Throws CheckpointError.
  void ReplaceFile(const std::string& path, std::string_view bytes);

 protected:
  /// A non-zero errno makes the effect fail without being tried.
  virtual int Intercept(const Effect& /*effect*/) { return 0; }
};

/// fsdp::archive::may_pass.
bool MayPass(int error);

/// Whether a read that failed so counts as damage of what is read, rather than as out of reach for
/// now: all that does not pass, and EIO, since a broken sector stays for ever.
bool IsDamage(int error);

/// One line that names `path`, the reason and the remedy; for a full disk also the needed and the
/// free bytes. `action`: "write", "make the directory". needed_bytes 0: unknown.
std::string DescribeIoError(std::string_view action, const std::string& path, int error,
                            int64_t needed_bytes = 0);

/// Throws CheckpointError with DescribeIoError unless `error` is 0.
void CheckIo(int error, std::string_view action, const std::string& path, int64_t needed_bytes = 0);

/// Throws CheckpointError (ENOSPC) if `file_system` is known to have less room for `path` than
/// that.
void CheckRoom(FileSystem& file_system, const std::string& path, int64_t needed_bytes);

/// Opened for positional reads.
class InputFile {
 public:
  explicit InputFile(const std::string& path);
  int64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  uint64_t inode() const { return inode_; }
  /// When it was modified, as of the opening.
  int64_t modified_ns() const { return modified_ns_; }
  /// Fills `out` or throws CheckpointError ("truncated").
  void Read(int64_t offset, void* out, int64_t byte_count) const;

 private:
  std::string path_;
  FileDescriptor file_;
  uint64_t inode_ = 0;
  int64_t size_ = 0;
  int64_t modified_ns_ = 0;
};

/// The whole file. Throws CheckpointError; also if it is larger than `byte_count_max`.
std::string ReadWholeFile(const InputFile& file, int64_t byte_count_max);
std::string ReadWholeFile(const std::string& path, int64_t byte_count_max);

/// Names in a directory, sorted; empty if there is no such directory. Throws on other errors.
std::vector<std::string> ListDirectory(const std::string& path);
/// Whether it exists. Throws CheckpointError if that cannot be told for now (MayPass).
bool FileExists(const std::string& path);
bool DirectoryExists(const std::string& path);

/// XXH3-64 of a byte range, as 16 hex digits.
std::string HashBytes(std::string_view bytes);
std::string HashFile(const InputFile& file, int64_t offset, int64_t byte_count);

/// XXH3-64 of bytes that come in parts.
class StreamHash {
 public:
  StreamHash();
  ~StreamHash();
  StreamHash(const StreamHash&) = delete;
  StreamHash& operator=(const StreamHash&) = delete;
  void Add(const void* data, size_t byte_count);
  std::string Digest() const;

 private:
  void* state_;
};

/// Holds `<directory>/.lock` while it lives: one publisher at a time, across processes and, where
/// the file system supports record locks, across nodes.
class DirectoryLock {
 public:
  /// Waits up to 10 s. Throws CheckpointError.
  DirectoryLock(FileSystem& file_system, const std::string& directory);

 private:
  FileDescriptor file_;
};

}  // namespace fsdprun::checkpoint
