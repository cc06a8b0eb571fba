#include <fcntl.h>
#include <linux/fs.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "formats/files/output_file.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

bool IsDirectory(const std::string& path) {
  struct stat stats {};
  return lstat(path.c_str(), &stats) == 0 && S_ISDIR(stats.st_mode);
}

/// 0, or errno. Some file systems cannot exchange names.
int Exchange(const std::string& one, const std::string& other) {
  return renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0 ? 0
                                                                                         : errno;
}

bool CannotExchange(int error) { return error == EINVAL || error == ENOSYS || error == ENOTSUP; }

/// Renames, each of which can be taken back until all are done.
class Renames {
 public:
  /// Gives the file `from` the name `to`. What had it is in a place of its own then.
  void Give(const std::string& from, const std::string& to, Existing existing) {
    if (existing == Existing::kReplace && NameIsTaken(to)) {
      if (IsDirectory(to)) {
        FailOutput("replace", to, EISDIR, 0);
      }
      const int error = Exchange(from, to);
      if (error == 0) {
        done_.push_back({from, to, /*is_exchange=*/true});
        old_.push_back(from);
        folders_.insert(FolderOf(to));
        return;
      }
      if (!CannotExchange(error)) {
        FailOutput("replace", to, error, 0);
      }
      MoveAway(to);
    }
    Rename(from, to);
  }
  /// For what is not there, nothing.
  void MoveAway(const std::string& path) {
    if (NameIsTaken(path)) {
      const std::string away = ReplacedName(path);
      Rename(path, away);
      old_.push_back(away);
    }
  }
  /// Takes all back. Returns what that has failed for, in words; empty: nothing.
  std::string Undo() {
    std::string left;
    for (; !done_.empty(); done_.pop_back()) {
      const Done& last = done_.back();
      const bool is_undone = last.is_exchange
                                 ? Exchange(last.from, last.to) == 0
                                 : std::rename(last.to.c_str(), last.from.c_str()) == 0;
      if (!is_undone) {
        left += "; what was " + last.from + " is " + last.to + " now" +
                (last.is_exchange ? ", and the other way round" : "");
      }
    }
    return left;
  }
  void Sync() const {
    for (const std::string& folder : folders_) {
      SyncFolder(folder);
    }
  }
  void RemoveOld() const {
    // What cannot be removed is in nobody's way.
    for (const std::string& path : old_) {
      unlink(path.c_str());
    }
  }

 private:
  struct Done {
    std::string from;
    std::string to;
    bool is_exchange;
  };

  void Rename(const std::string& from, const std::string& to) {
    RenameUnsynced(from, to, Existing::kRefuse);
    done_.push_back({from, to, /*is_exchange=*/false});
    folders_.insert(FolderOf(to));
  }

  std::vector<Done> done_;
  std::vector<std::string> old_;
  std::set<std::string> folders_;
};

}  // namespace

void PublishTogether(const std::vector<OutputFile*>& files, const std::vector<std::string>& stale) {
  for (OutputFile* file : files) {
    file->Finish();
  }
  for (const OutputFile* file : files) {
    file->begun_.CheckGoesOn(file->path_);
  }
  Renames renames;
  try {
    for (const OutputFile* file : files) {
      renames.Give(file->temporary_, file->path_, file->existing_);
    }
    for (const std::string& path : stale) {
      renames.MoveAway(path);
    }
    renames.Sync();
  } catch (const Error& error) {
    const std::string left = renames.Undo();
    if (left.empty()) {
      throw;
    }
    // What has a temporary name may be an old file.
    for (OutputFile* file : files) {
      file->temporary_.clear();
    }
    throw Error(error.what() + left + "; rename them", error.error_number());
  }
  for (OutputFile* file : files) {
    file->temporary_.clear();
  }
  renames.RemoveOld();
}

}  // namespace fsdprun
