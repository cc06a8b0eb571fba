#include "formats/files/output_file.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <utility>

#include "formats/files/temporary_name.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

constexpr int kNamesTried = 100;

/// Free to this user where `path` is, or is to be; -1: unknown.
int64_t FreeBytes(std::string path) {
  struct statvfs stats {};
  while (statvfs(path.c_str(), &stats) != 0) {
    if (path == "/" || path == ".") {
      return -1;
    }
    path = FolderOf(path);
  }
  return static_cast<int64_t>(stats.f_bavail) * static_cast<int64_t>(stats.f_frsize);
}

/// A new file beside `path`; its name is put into `temporary`.
int OpenBeside(const std::string& path, std::string& temporary) {
  for (int i = 0; i < kNamesTried; ++i) {
    temporary = TemporaryName(path, i);
    const int fd = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd >= 0) {
      HoldTemporary(fd);
    }
    if (fd >= 0 || errno != EEXIST) {
      return fd;
    }
  }
  return -1;
}

}  // namespace

bool NameIsTaken(const std::string& path) {
  struct stat stats {};
  return lstat(path.c_str(), &stats) == 0;
}

void RefuseExisting(const std::string& path) {
  throw Error("refused to write " + path +
                  ": it is there already; choose another name, or replace it with --force",
              EEXIST);
}

std::string ReplacedName(const std::string& path) {
  const std::string start = path + ".replaced-" + std::to_string(getpid()) + "-";
  int number = 0;
  while (NameIsTaken(start + std::to_string(number))) {
    ++number;
  }
  return start + std::to_string(number);
}

std::string FolderOf(const std::string& path) {
  const std::filesystem::path parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent.string();
}

void FailOutput(std::string_view action, const std::string& path, int error, int64_t needed_bytes) {
  std::string text = "cannot " + std::string(action) + " " + path + ": ";
  if (error != ENOSPC && error != EDQUOT) {
    throw Error(text + std::strerror(error), error);
  }
  text += error == EDQUOT ? "the disk quota is used up" : "the disk is full";
  if (needed_bytes > 0) {
    text += "; " + std::to_string(needed_bytes) + " bytes are needed";
  }
  if (const int64_t free_bytes = FreeBytes(FolderOf(path)); free_bytes >= 0) {
    text += ", " + std::to_string(free_bytes) + " bytes are free";
  }
  throw Error(text + "; free space or write to another disk", error);
}

void CheckFree(const std::string& path, int64_t needed_bytes) {
  const int64_t free_bytes = FreeBytes(FolderOf(path));
  if (free_bytes >= 0 && free_bytes < needed_bytes) {
    FailOutput("write", path, ENOSPC, needed_bytes);
  }
}

void SyncFolder(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  const int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
  if (fd >= 0) {
    close(fd);
  }
  // Some network file systems have no fsync of a directory; their renames are durable at once.
  if (error != 0 && error != EINVAL && error != EACCES) {
    FailOutput("sync", path, error, 0);
  }
}

void RenameUnsynced(const std::string& from, const std::string& to, Existing existing) {
  const unsigned flags = existing == Existing::kRefuse ? RENAME_NOREPLACE : 0;
  int error = renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), flags) == 0 ? 0 : errno;
  if (flags != 0 && (error == EINVAL || error == ENOSYS)) {
    // This file system cannot do both in one step.
    error = NameIsTaken(to) ? EEXIST : std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
  }
  if (error == EEXIST && existing == Existing::kRefuse) {
    RefuseExisting(to);
  }
  if (error != 0) {
    FailOutput("write", to, error, 0);
  }
}

void RenameOutput(const std::string& from, const std::string& to, Existing existing) {
  RenameUnsynced(from, to, existing);
  SyncFolder(FolderOf(to));
}

OutputFile::OutputFile(std::string path, int64_t byte_count, Existing existing)
    : path_(std::move(path)),
      byte_count_(byte_count == kUnknownSize ? 0 : byte_count),
      grows_(byte_count == kUnknownSize),
      existing_(existing) {
  if (existing_ == Existing::kRefuse && NameIsTaken(path_)) {
    RefuseExisting(path_);
  }
  RemoveLeftovers(path_);
  CheckFree(path_, byte_count_);
  fd_ = OpenBeside(path_, temporary_);
  if (fd_ < 0) {
    FailOutput("write", path_, errno, byte_count_);
  }
  const int error = byte_count_ == 0 || fallocate(fd_, 0, 0, byte_count_) == 0 ? 0 : errno;
  if (error != 0 && error != EOPNOTSUPP && error != ENOSYS) {
    unlink(temporary_.c_str());
    close(fd_);
    FailOutput("write", path_, error, byte_count_);
  }
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
  if (!temporary_.empty()) {
    unlink(temporary_.c_str());
  }
}

void OutputFile::Write(int64_t offset, const void* data, int64_t byte_count) {
  begun_.CheckGoesOn(path_);
  if (grows_ && offset >= 0 && byte_count >= 0 && offset <= INT64_MAX - byte_count) {
    byte_count_ = std::max(byte_count_, offset + byte_count);
  }
  if (offset < 0 || byte_count < 0 || byte_count > byte_count_ - offset) {
    throw Error("cannot write " + std::to_string(byte_count) + " bytes at byte " +
                std::to_string(offset) + " of " + path_ + ", which is to have " +
                std::to_string(byte_count_));
  }
  const char* next = static_cast<const char*>(data);
  while (byte_count > 0) {
    const ssize_t written = pwrite(fd_, next, static_cast<size_t>(byte_count), offset);
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written <= 0) {
      FailOutput("write", path_, written < 0 ? errno : ENOSPC, grows_ ? 0 : byte_count_);
    }
    next += written;
    offset += written;
    byte_count -= written;
  }
}

void OutputFile::Write(int64_t offset, std::string_view bytes) {
  Write(offset, bytes.data(), static_cast<int64_t>(bytes.size()));
}

void OutputFile::Finish() {
  if (fd_ < 0) {
    return;
  }
  begun_.CheckGoesOn(path_);
  if (ftruncate(fd_, byte_count_) != 0 || fsync(fd_) != 0) {
    FailOutput("write", path_, errno, grows_ ? 0 : byte_count_);
  }
  close(fd_);
  fd_ = -1;
}

void OutputFile::Publish() {
  Finish();
  begun_.CheckGoesOn(path_);
  RenameOutput(temporary_, path_, existing_);
  temporary_.clear();
}

void WriteOutput(const std::string& path, std::string_view bytes, Existing existing) {
  OutputFile file(path, static_cast<int64_t>(bytes.size()), existing);
  file.Write(0, bytes);
  file.Publish();
}

}  // namespace fsdprun
