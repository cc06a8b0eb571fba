#include "formats/files/output_folder.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "formats/files/temporary_name.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

constexpr int kFolderNamesTried = 100;

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    FailOutput("list", folder, error.value(), 0);
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool HasName(const std::vector<std::string>& sorted, const std::string& name) {
  return std::binary_search(sorted.begin(), sorted.end(), name);
}

bool IsFolder(const std::string& path) {
  struct stat stats {};
  return stat(path.c_str(), &stats) == 0 && S_ISDIR(stats.st_mode);
}

/// A link's own place is left alone, and without a slash at its end.
std::string RealPath(std::string path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::canonical(path, error);
  if (!error) {
    return real.string();
  }
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

int Rename(const std::string& from, const std::string& to) {
  return std::rename(from.c_str(), to.c_str()) == 0 ? 0 : errno;
}

/// The new folder is in its place.
[[noreturn]] void FailBehind(const std::string& path, const std::string& action, int error,
                             const std::string& old) {
  throw Error(path + " is written, but what it replaces is still at " + old + ": cannot " + action +
                  ": " + std::strerror(error) + "; look there for files of yours, and remove it",
              error);
}

}  // namespace

OutputFolder::OutputFolder(std::string path, int64_t byte_count, Existing existing)
    : path_(RealPath(std::move(path))), existing_(existing) {
  struct stat stats {};
  if (lstat(path_.c_str(), &stats) == 0) {
    if (existing_ == Existing::kRefuse) {
      throw Error("refused to write " + path_ +
                      ": it is there already; choose another name, or write into it with --force",
                  EEXIST);
    }
    if (!IsFolder(path_)) {
      throw Error("cannot write " + path_ + ": it is no folder; choose another name", ENOTDIR);
    }
  }
  RemoveLeftovers(path_);
  CheckFree(path_, byte_count);
  std::error_code error;
  std::filesystem::create_directories(FolderOf(path_), error);
  if (error) {
    FailOutput("make the folder", FolderOf(path_), error.value(), 0);
  }
  TakeName();
}

OutputFolder::~OutputFolder() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  }
  if (fd_ >= 0) {
    close(fd_);
  }
}

void OutputFolder::TakeName() {
  for (int i = 0; i < kFolderNamesTried; ++i) {
    temporary_ = TemporaryName(path_, i);
    if (mkdir(temporary_.c_str(), 0755) == 0) {
      fd_ = open(temporary_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
      HoldTemporary(fd_);
      return;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  FailOutput("make the folder", std::exchange(temporary_, {}), errno, 0);
}

/// Who could read and write in the old folder can in the new one.
void OutputFolder::TakeModeOf(const std::string& folder) {
  struct stat stats {};
  if (stat(folder.c_str(), &stats) != 0) {
    FailOutput("look at", folder, errno, 0);
  }
  // Only root, or a member of the group, may do the first.
  const bool is_owned = chown(temporary_.c_str(), stats.st_uid, stats.st_gid) == 0 ||
                        chown(temporary_.c_str(), static_cast<uid_t>(-1), stats.st_gid) == 0;
  const mode_t mode = stats.st_mode & (is_owned ? 07777U : 0777U);
  if (chmod(temporary_.c_str(), mode) != 0) {
    FailOutput("set the mode of", temporary_, errno, 0);
  }
}

/// Links what stays of the old folder into the new one; returns the names in the old one of which
/// nothing is needed any more.
std::vector<std::string> OutputFolder::CarryOver(
    const std::function<bool(const std::string&)>& is_stale) {
  const std::vector<std::string> ours = NamesIn(temporary_);
  std::vector<std::string> done;
  for (const std::string& name : NamesIn(path_)) {
    const std::string old = path_ + "/" + name;
    if (HasName(ours, name) || is_stale(name)) {
      if (IsFolder(old)) {
        throw Error("cannot replace " + old + ": it is a folder; move it away", EISDIR);
      }
      done.push_back(name);
    } else if (linkat(AT_FDCWD, old.c_str(), AT_FDCWD, Place(name).c_str(), 0) == 0) {
      done.push_back(name);
    }
    // What cannot be linked, such as a folder, is moved once the new folder is in its place.
  }
  return done;
}

/// Returns where the old folder is afterwards.
std::string OutputFolder::TakePlace() {
  // Under a name that the next output of this path does not remove.
  const std::string ready = ReplacedName(path_);
  if (const int error = Rename(temporary_, ready); error != 0) {
    FailOutput("rename", temporary_, error, 0);
  }
  temporary_ = ready;
  int error =
      renameat2(AT_FDCWD, ready.c_str(), AT_FDCWD, path_.c_str(), RENAME_EXCHANGE) == 0 ? 0 : errno;
  if (error == 0) {
    return std::exchange(temporary_, {});
  }
  if (error != EINVAL && error != ENOSYS && error != ENOTSUP) {
    FailOutput("replace", path_, error, 0);
  }
  std::string old = ReplacedName(path_);
  if (error = Rename(path_, old); error != 0) {
    FailOutput("replace", path_, error, 0);
  }
  if (error = Rename(ready, path_); error != 0 && Rename(old, path_) == 0) {
    FailOutput("replace", path_, error, 0);
  }
  temporary_.clear();
  if (error != 0) {
    throw Error("cannot replace " + path_ + ": " + std::strerror(error) + "; the old one is now " +
                    old + ", and the new one, which is complete, " + ready + "; rename one of them",
                error);
  }
  return old;
}

void OutputFolder::ClearReplaced(const std::string& old, const std::vector<std::string>& done) {
  for (const std::string& name : NamesIn(old)) {
    if (!HasName(done, name)) {
      const int error = Rename(old + "/" + name, path_ + "/" + name);
      if (error != 0) {
        FailBehind(path_, "move " + name, error, old);
      }
    }
  }
  SyncFolder(path_);
  SyncFolder(FolderOf(path_));
  for (const std::string& name : done) {
    if (unlink((old + "/" + name).c_str()) != 0 && errno != ENOENT) {
      FailBehind(path_, "remove " + name, errno, old);
    }
  }
  if (rmdir(old.c_str()) != 0) {
    FailBehind(path_, "remove the folder", errno, old);
  }
}

void OutputFolder::Publish(const std::function<bool(const std::string&)>& is_stale) {
  begun_.CheckGoesOn(path_);
  if (existing_ != Existing::kReplace || !IsFolder(path_)) {
    SyncFolder(temporary_);
    RenameOutput(temporary_, path_, Existing::kRefuse);
    temporary_.clear();
    return;
  }
  const std::vector<std::string> done = CarryOver(is_stale);
  TakeModeOf(path_);
  SyncFolder(temporary_);
  const std::string old = TakePlace();
  ClearReplaced(old, done);
}

}  // namespace fsdprun
