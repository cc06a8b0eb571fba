#include "launcher/run/run_dir.h"

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

constexpr Duration kRmdirTimeout = std::chrono::seconds(1);
constexpr Duration kRemovalTimeout = std::chrono::seconds(60);

/// Runs what touches files, but does not wait longer than `limit` for a file system that hangs;
/// false then.
bool RunBounded(EventLoop& loop, Duration limit, FileThread::Closure work) {
  FileThread files(loop);
  files.Run(std::move(work), [] {});
  return files.Await(MonoNow() + limit);
}

}  // namespace

RunDirChange::RunDirChange(EventLoop& loop, std::string old_dir, MakeDirs make, Then then,
                           Duration limit)
    : loop_(loop), then_(std::move(then)), files_(loop) {
  auto result = std::make_shared<Result>(Result{absl::UnknownError("")});
  files_.Run(
      [old_dir, make = std::move(make), result] {
        result->dirs = make();
        result->is_old_removed = result->dirs.ok() && ::rmdir(old_dir.c_str()) == 0;
      },
      [this, result] { Tell(*result); });
  timer_ = loop_.At(MonoNow() + limit, [this, limit] {
    files_.RunFinished();  // It may have answered in time, if this process was stopped.
    Tell({.dirs = absl::DeadlineExceededError(
              absl::StrCat("cannot make a log directory: its file system did not answer within ",
                           ToSeconds(limit), " s; choose another with --log-dir"))});
  });
}

RunDirChange::~RunDirChange() { loop_.Cancel(timer_); }

void RunDirChange::Tell(const Result& result) {
  loop_.Cancel(timer_);
  if (const Then then = std::exchange(then_, nullptr)) {
    then(result);
  }
}

bool RemoveIfEmpty(EventLoop& loop, const std::string& directory) {
  auto is_removed = std::make_shared<bool>(false);
  const bool is_done = RunBounded(loop, kRmdirTimeout, [directory, is_removed] {
    *is_removed = ::rmdir(directory.c_str()) == 0;
  });
  return is_done && *is_removed;
}

bool RemoveEmptyFolders(EventLoop& loop, const std::string& directory) {
  auto is_removed = std::make_shared<bool>(false);
  const bool is_done = RunBounded(loop, kRmdirTimeout, [directory, is_removed] {
    std::vector<std::string> folders = {directory};
    std::error_code error;
    for (std::filesystem::recursive_directory_iterator it(directory, error), end;
         !error && it != end; it.increment(error)) {
      if (it->is_directory(error) && !it->is_symlink(error)) {
        folders.push_back(it->path().string());
      }
    }
    // A folder comes before those in it.
    std::for_each(folders.rbegin(), folders.rend(), [is_removed](const std::string& folder) {
      *is_removed = ::rmdir(folder.c_str()) == 0;
    });
  });
  return is_done && *is_removed;
}

void RemoveTree(EventLoop& loop, const std::string& directory) {
  RunBounded(loop, kRemovalTimeout, [directory] {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  });
}

}  // namespace fsdprun
