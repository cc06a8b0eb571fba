#include "formats/checkpoint/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {
namespace {

constexpr auto kLockTimeout = std::chrono::seconds(10);
constexpr int kLockRetryMs = 10;

int Errno(int result) { return result < 0 ? errno : 0; }

/// The errno of a call that a signal may interrupt (a stop request comes as one).
template <typename Call>
int ErrnoOf(Call&& call) {
  int error = 0;
  do {
    error = Errno(call());
  } while (error == EINTR);
  return error;
}

FileDescriptor OpenDescriptor(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = open(path.c_str(), flags | O_CLOEXEC, 0644);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

std::string ParentOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

/// 0 if there is nothing. Throws if that cannot be told for now.
mode_t ModeOf(const std::string& path) {
  struct stat stats {};
  const int error = ErrnoOf([&] { return stat(path.c_str(), &stats); });
  CheckIo(MayPass(error) ? error : 0, "look at", path);
  return error == 0 ? stats.st_mode : 0;
}

/// Whether there is a name `to` and none `from`.
bool IsRenamed(const std::string& from, const std::string& to) {
  struct stat stats {};
  const auto look = [&](const std::string& path) {
    return ErrnoOf([&] { return lstat(path.c_str(), &stats); });
  };
  return look(from) == ENOENT && look(to) == 0;
}

/// The parent of `path` and so on, up to the root of their file system.
std::vector<std::string> AncestorsInFileSystem(const std::string& path) {
  const auto device_of = [](const std::string& directory) {
    struct stat stats {};
    CheckIo(ErrnoOf([&] { return stat(directory.c_str(), &stats); }), "look at", directory);
    return stats.st_dev;
  };
  std::vector<std::string> ancestors;
  std::string below = std::filesystem::absolute(path).lexically_normal();
  for (std::string parent = ParentOf(below);
       parent != below && device_of(parent) == device_of(below); parent = ParentOf(below)) {
    ancestors.push_back(parent);
    below = std::move(parent);
  }
  return ancestors;
}

/// Of the nearest existing ancestor. Some network file systems know nothing of their size.
std::optional<int64_t> FreeBytesAt(std::string path) {
  struct statvfs stats {};
  while (statvfs(path.c_str(), &stats) != 0) {
    if (path == "/" || path == ".") {
      return std::nullopt;
    }
    path = ParentOf(path);
  }
  if (stats.f_blocks == 0) {
    return std::nullopt;
  }
  return static_cast<int64_t>(stats.f_bavail) * static_cast<int64_t>(stats.f_frsize);
}

std::string DescribeFullDisk(int error, int64_t needed_bytes, std::optional<int64_t> free_bytes) {
  std::string text = error == EDQUOT ? "the disk quota is used up" : "the disk is full";
  if (needed_bytes > 0) {
    text += "; " + std::to_string(needed_bytes) + " bytes are needed";
  }
  if (free_bytes) {
    text += (needed_bytes > 0 ? ", " : "; ") + std::to_string(*free_bytes) + " bytes are free";
  }
  return text + "; free space, lower checkpoint.keep, or choose another checkpoint.dir";
}

}  // namespace

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

int FileSystem::MakeDirectory(const std::string& path) {
  if (const int error = Intercept({"make_directory", path}); error != 0) {
    return error;
  }
  std::error_code error;
  do {
    std::filesystem::create_directories(path, error);
  } while (error.value() == EINTR);
  if (!error && !DirectoryExists(path)) {
    return ENOTDIR;
  }
  return error.value();
}

int FileSystem::Create(const std::string& path, FileDescriptor& out) {
  if (const int error = Intercept({"create", path}); error != 0) {
    return error;
  }
  out = OpenDescriptor(path, O_WRONLY | O_CREAT | O_TRUNC);
  return Errno(out.get());
}

int FileSystem::Reserve(const FileDescriptor& file, const std::string& path, int64_t byte_count) {
  if (const int error = Intercept({"reserve", path, {}, {}, byte_count}); error != 0) {
    return error;
  }
  const int error = ErrnoOf([&] { return fallocate(file.get(), 0, 0, byte_count); });
  return error == EOPNOTSUPP || error == ENOSYS ? 0 : error;
}

int FileSystem::Write(const FileDescriptor& file, const std::string& path, const void* data,
                      size_t byte_count) {
  if (const int error =
          Intercept({"write", path, {}, {static_cast<const char*>(data), byte_count}});
      error != 0) {
    return error;
  }
  const char* next = static_cast<const char*>(data);
  while (byte_count > 0) {
    const ssize_t written = write(file.get(), next, byte_count);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      return written < 0 ? errno : ENOSPC;
    }
    next += written;
    byte_count -= static_cast<size_t>(written);
  }
  return 0;
}

int FileSystem::Sync(const FileDescriptor& file, const std::string& path) {
  if (const int error = Intercept({"sync", path}); error != 0) {
    return error;
  }
  return ErrnoOf([&] { return fsync(file.get()); });
}

int FileSystem::SyncDirectory(const std::string& path) {
  if (const int error = Intercept({"sync_directory", path}); error != 0) {
    return error;
  }
  const FileDescriptor directory = OpenDescriptor(path, O_RDONLY | O_DIRECTORY);
  if (directory.get() < 0) {
    return errno;
  }
  const int error = ErrnoOf([&] { return fsync(directory.get()); });
  // Some network file systems have no fsync of a directory; their renames are durable at once.
  return error == EINVAL ? 0 : error;
}

int FileSystem::Rename(const std::string& from, const std::string& to) {
  if (const int error = Intercept({"rename", to, from}); error != 0) {
    return error;
  }
  bool was_interrupted = false;
  while (true) {
    const int error = Errno(rename(from.c_str(), to.c_str()));
    if (error == ENOENT && was_interrupted && IsRenamed(from, to)) {
      return 0;  // by the call that was interrupted: some file systems do it all the same
    }
    if (error != EINTR) {
      return error;
    }
    was_interrupted = true;
  }
}

int FileSystem::Exchange(const std::string& a, const std::string& b) {
  if (const int error = Intercept({"exchange", b, a}); error != 0) {
    return error;
  }
  // Not again after EINTR: if it was done all the same, that would undo it.
  return Errno(renameat2(AT_FDCWD, a.c_str(), AT_FDCWD, b.c_str(), RENAME_EXCHANGE));
}

int FileSystem::RemoveTree(const std::string& path) {
  if (const int error = Intercept({"remove", path}); error != 0) {
    return error;
  }
  std::error_code error;
  do {
    std::filesystem::remove_all(path, error);
  } while (error.value() == EINTR);
  return error.value();
}

std::optional<int64_t> FileSystem::FreeBytes(const std::string& path) { return FreeBytesAt(path); }

int FileSystem::SetPulse(const FileDescriptor& file, Pulse pulse) {
  const timespec time = pulse == Pulse::kBeat ? timespec{0, UTIME_NOW} : timespec{0, 0};
  const timespec times[2] = {{0, UTIME_OMIT}, time};
  return ErrnoOf([&] { return futimens(file.get(), times); });
}

void FileSystem::MakeDurableDirectory(const std::string& path) {
  CheckIo(MakeDirectory(path), "make the directory", path);
  for (const std::string& ancestor : AncestorsInFileSystem(path)) {
    const int error = SyncDirectory(ancestor);
    // A directory without read permission cannot be opened for the sync.
    CheckIo(error == EACCES ? 0 : error, "sync", ancestor);
  }
}

void FileSystem::WriteFile(const std::string& path, std::string_view bytes) {
  const auto needed = static_cast<int64_t>(bytes.size());
  FileDescriptor file;
  CheckIo(Create(path, file), "create", path, needed);
  CheckIo(Write(file, path, bytes.data(), bytes.size()), "write", path, needed);
  CheckIo(Sync(file, path), "write", path, needed);
}

void FileSystem::ReplaceFile(const std::string& path, std::string_view bytes) {
  const std::string temporary = path + ".tmp";
  WriteFile(temporary, bytes);
  CheckIo(Rename(temporary, path), "rename to", path);
  CheckIo(SyncDirectory(ParentOf(path)), "sync", ParentOf(path));
}

bool MayPass(int error) { return fsdp::archive::may_pass(error); }

bool IsDamage(int error) { return error == EIO || !MayPass(error); }

std::string DescribeIoError(std::string_view action, const std::string& path, int error,
                            int64_t needed_bytes) {
  std::string text = "cannot " + std::string(action) + " " + path + ": ";
  switch (error) {
    case ENOSPC:
    case EDQUOT:
      return text + DescribeFullDisk(error, needed_bytes, FreeBytesAt(ParentOf(path)));
    case EROFS:
      return text +
             "the file system is mounted read-only; remount it or choose another "
             "checkpoint.dir";
    case EACCES:
    case EPERM:
      return text + "permission denied for user id " + std::to_string(geteuid()) +
             "; make it writable or choose another checkpoint.dir";
    case ENOTDIR:
    case EEXIST:
      return text +
             "there is a file where a directory is needed; move it away or choose another "
             "checkpoint.dir";
    case ENOENT:
      return text +
             "no such file or directory; checkpoint.dir must lie on a file system that "
             "all nodes share";
    default:
      return text + std::strerror(error);
  }
}

void CheckIo(int error, std::string_view action, const std::string& path, int64_t needed_bytes) {
  if (error != 0) {
    throw CheckpointError(DescribeIoError(action, path, error, needed_bytes), error);
  }
}

void CheckRoom(FileSystem& file_system, const std::string& path, int64_t needed_bytes) {
  const std::optional<int64_t> free_bytes = file_system.FreeBytes(path);
  if (free_bytes && *free_bytes < needed_bytes) {
    throw CheckpointError(
        "cannot write " + path + ": " + DescribeFullDisk(ENOSPC, needed_bytes, free_bytes), ENOSPC);
  }
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::error_code error;
  std::vector<std::string> names;
  do {
    names.clear();
    std::filesystem::directory_iterator entry(path, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
      names.push_back(entry->path().filename().string());
    }
  } while (error.value() == EINTR);
  if (error && error.value() != ENOENT) {
    CheckIo(error.value(), "list", path);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool FileExists(const std::string& path) { return S_ISREG(ModeOf(path)); }

bool DirectoryExists(const std::string& path) { return S_ISDIR(ModeOf(path)); }

DirectoryLock::DirectoryLock(FileSystem& file_system, const std::string& directory) {
  const std::string path = directory + "/.lock";
  CheckIo(file_system.Create(path, file_), "create", path);
  struct flock range {};
  range.l_type = F_WRLCK;
  const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
  while (fcntl(file_.get(), F_OFD_SETLK, &range) != 0) {
    if (errno == EINVAL || errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP) {
      return;  // no record locks here: the claim file alone fences
    }
    if (errno != EAGAIN && errno != EACCES && errno != EINTR) {
      CheckIo(errno, "lock", path);
    }
    if (std::chrono::steady_clock::now() >= deadline) {
      throw CheckpointError(
          "cannot lock " + path +
              ": another process has published there for more than 10 s; end it, or "
              "choose another checkpoint.dir",
          EAGAIN);
    }
    poll(nullptr, 0, kLockRetryMs);
  }
}

}  // namespace fsdprun::checkpoint
