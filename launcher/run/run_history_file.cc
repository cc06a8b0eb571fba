#include "launcher/run/run_history_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/directory/user_folder.h"

namespace fsdprun {
namespace {

constexpr size_t kLongestRecord = 4096;
/// Nobody removes the file of a job whose launcher was killed.
constexpr auto kOldest = std::chrono::hours(24 * 60);

std::vector<std::string> FoldersOf(const Environment& environment) {
  std::vector<std::string> folders = UserFolders(environment);
  if (!folders.empty()) {
    folders.push_back(absl::StrCat(folders.back(), "/slurm-runs"));
  }
  return folders;
}

std::string PathOf(const LaunchPlan& plan, const Environment& environment) {
  const std::vector<std::string> folders = FoldersOf(environment);
  return folders.empty() ? ""
                         : absl::StrCat(folders.back(), "/", RunHistoryName(plan, environment));
}

absl::StatusOr<std::optional<PastRun>> ReadRun(const std::string& path) {
  if (path.empty()) {
    return absl::NotFoundError("no home directory");
  }
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    if (errno == ENOENT) {
      return std::optional<PastRun>();
    }
    return absl::UnknownError(ErrorText(errno));
  }
  std::string text(kLongestRecord, '\0');
  const ssize_t n = ::read(file.get(), text.data(), text.size());
  if (n < 0) {
    return absl::UnknownError(ErrorText(errno));
  }
  text.resize(static_cast<size_t>(n));
  const absl::StatusOr<PastRun> run = DecodePastRun(text);
  return run.ok() ? std::optional<PastRun>(*run) : std::nullopt;  // Half a line is nothing.
}

void RemoveOld(const std::filesystem::path& folder) {
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code ignored;
    const auto written = entry->last_write_time(ignored);
    if (!ignored && std::filesystem::file_time_type::clock::now() - written > kOldest) {
      std::filesystem::remove(entry->path(), ignored);
    }
  }
}

// By a name of its own: launchers of one job may write at once. It takes the place of the record
// that is there only once it is closed, which is when a network file system tells of a full quota.
bool ReplaceRun(const std::string& path, const std::string& text) {
  std::string temporary = absl::StrCat(path, ".XXXXXX");
  UniqueFd file(::mkostemp(temporary.data(), O_CLOEXEC));
  if (!file.valid()) {
    return false;
  }
  const bool is_written = WriteAll(file.get(), text) == 0 && ::close(file.release()) == 0 &&
                          ::rename(temporary.c_str(), path.c_str()) == 0;
  if (!is_written) {
    ::unlink(temporary.c_str());
  }
  return is_written;
}

// Where a quota is used up there is no room for another file, but what is there can be changed. By
// one call: it is so short that nobody finds the half of it.
bool OverwriteRun(const std::string& path, const std::string& text) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC));
  const auto size = static_cast<ssize_t>(text.size());
  return file.valid() && ::pwrite(file.get(), text.data(), text.size(), 0) == size &&
         ::ftruncate(file.get(), size) == 0 && ::close(file.release()) == 0;
}

bool WriteRun(const std::vector<std::string>& folders, const std::string& path,
              const PastRun& run) {
  if (path.empty() || !MakeFolders(folders).ok()) {
    return false;
  }
  const std::string text = EncodePastRun(run);
  return ReplaceRun(path, text) || OverwriteRun(path, text);
}

// What was read counts also if this run cannot be added to it. If there is no record, and none can
// be made, nobody knows of the runs before.
RunsInARow CountRuns(const absl::StatusOr<std::optional<PastRun>>& read, const RunEnd& end,
                     int restarts, const std::function<bool(const PastRun&)>& write) {
  if (read.ok()) {
    const PastRun run = RememberRun(*read, end, restarts);
    if (write(run) || read->has_value()) {
      return run.runs;
    }
  }
  return RunsOfUnknown(end, restarts);
}

}  // namespace

RunHistoryFile::RunHistoryFile(EventLoop& loop, const LaunchPlan& plan,
                               const Environment& environment, std::unique_ptr<FileThread> files,
                               Duration timeout)
    : loop_(loop),
      folders_(FoldersOf(environment)),
      path_(PathOf(plan, environment)),
      read_(std::make_shared<Read>(absl::UnknownError("not read"))),
      timeout_(timeout),
      files_(std::move(files)) {
  files_->Run([path = path_, read = read_] { *read = ReadRun(path); },
              [this] { before_ = read_->ok() ? **read_ : std::nullopt; });
}

RunHistoryFile::~RunHistoryFile() { loop_.Cancel(timer_); }

void RunHistoryFile::Remember(const RunEnd& end, int restarts,
                              std::function<void(const RunsInARow&)> then) {
  const auto answer = std::make_shared<std::function<void(const RunsInARow&)>>(std::move(then));
  const auto give = [this, answer](const RunsInARow& runs) {
    loop_.Cancel(timer_);
    if (auto once = std::exchange(*answer, nullptr); once != nullptr) {
      once(runs);
    }
  };
  const auto runs = std::make_shared<RunsInARow>();
  has_remembered_ = true;
  files_->Run(
      [path = path_, folders = folders_, read = read_, end, restarts, runs] {
        // An error at the start may have passed.
        const Read before = read->ok() ? *read : ReadRun(path);
        *runs = CountRuns(before, end, restarts, [&path, &folders](const PastRun& run) {
          return WriteRun(folders, path, run);
        });
      },
      [give, runs] { give(*runs); });
  timer_ = loop_.At(MonoNow() + timeout_, [this, give, end, restarts] {
    give(RememberRun(before_, end, restarts).runs);
  });
  if (!folders_.empty()) {  // Last, because it may look at many files.
    files_->Run([folder = folders_.back()] { RemoveOld(folder); }, [] {});
  }
}

void RunHistoryFile::Forget() {
  if (!has_remembered_) {
    return;
  }
  const auto is_done = std::make_shared<bool>(false);
  files_->Run([path = path_] { ::unlink(path.c_str()); }, [is_done] { *is_done = true; });
  const MonoTime deadline = MonoNow() + timeout_;
  while (!*is_done && files_->Await(deadline)) {  // What was begun before may end first.
  }
}

}  // namespace fsdprun
