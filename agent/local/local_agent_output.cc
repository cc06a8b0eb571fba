// What an agent does about the output of its workers: directories, routes, where logs are.
#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/local/local_agent.h"
#include "base/error_text.h"
#include "base/log.h"

namespace fsdprun {
namespace {

constexpr Duration kDirectoriesLimit = std::chrono::seconds(1);
constexpr keeper::Stream kStreams[] = {keeper::Stream::kStdout, keeper::Stream::kStderr};

/// Files and directories of an attempt that nobody else makes.
struct AttemptFiles {
  std::vector<std::string> directories;
  std::vector<std::string> files;
};

/// Also those above it, if somebody has cleaned up meanwhile.
std::error_code MakeDirectory(const std::string& directory) {
  std::error_code error;
  if (::mkdir(directory.c_str(), 0777) != 0 && errno != EEXIST) {
    std::filesystem::create_directories(directory, error);
  }
  return error;
}

/// On the file thread. What failed, or empty.
std::string Make(const AttemptFiles& wanted) {
  for (const std::string& directory : wanted.directories) {
    if (const std::error_code error = MakeDirectory(directory); error) {
      return absl::StrCat("make ", directory, ": ", error.message());
    }
  }
  for (const std::string& path : wanted.files) {
    const UniqueFd file(
        ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOCTTY, 0644));
    if (!file.valid()) {
      return absl::StrCat("make ", path, ": ", ErrorText(errno));
    }
  }
  return "";
}

}  // namespace

/// Directories of error files, and filtered files. The logs, with directories that are missing, are
/// made by the log writer.
void LocalAgent::MakeAttemptFiles(std::function<void()> then) {
  AttemptFiles wanted;
  const std::string directory = AttemptDir(options_.dirs, assignment_);
  for (const keeper::Stream stream : kStreams) {
    if (!FilterTexts(options_.output, SetOf(stream)).empty()) {
      wanted.files.push_back(FilteredPath(options_.dirs, assignment_, stream));
    }
  }
  if (directory.empty() && options_.dirs.vitals.empty()) {
    return then();
  }
  if (!directory.empty()) {
    wanted.directories.push_back(directory);
  }
  const bool has_folders = !directory.empty() && HasWorkerFolders(options_.output);
  const int folders = has_folders ? assignment_.local_world_size : 0;
  for (int local_rank = 0; local_rank < folders; ++local_rank) {
    wanted.directories.push_back(WorkerDir(options_.dirs, assignment_, local_rank));
  }
  auto once = std::make_shared<std::function<void()>>(std::move(then));
  const auto tell = [live = is_live_, this, once](const std::string& problem) {
    const std::function<void()> next = std::exchange(*once, nullptr);
    if (!*live || has_ended_ || next == nullptr) {
      return;
    }
    if (!problem.empty()) {
      WarnOfLogs(problem);
    }
    next();
  };
  auto problem = std::make_shared<std::string>();
  attempt_files_.Run([wanted, problem] { *problem = Make(wanted); },
                     [tell, problem] { tell(*problem); });
  loop_.At(MonoNow() + kDirectoriesLimit, [live = is_live_, this, tell, directory] {
    if (*live) {
      attempt_files_.RunFinished();
    }
    tell(directory.empty()
             ? ""
             : absl::StrCat("make ", directory, ": its file system did not answer within 1 s"));
  });
}

/// Of the present generation, on the thread that makes the attempt's files, and before those.
void LocalAgent::GetPages(WorkerPages (*get)(const RunDirs& dirs, Generation generation,
                                             int workers)) {
  if (options_.dirs.vitals.empty()) {
    return;
  }
  auto pages = std::make_shared<WorkerPages>();
  attempt_files_.Run(
      [get, dirs = options_.dirs, generation = assignment_.generation,
       workers = assignment_.local_world_size, pages] { *pages = get(dirs, generation, workers); },
      [this, get, pages] {
        if (get == MakeWorkerPages && !pages->problem.empty() &&
            !std::exchange(has_warned_of_vitals_, true)) {
          Log(LogLevel::kWarning, absl::StrCat("cannot ", pages->problem,
                                               "; not all workers can say how they are: their "
                                               "steps and collectives are not shown"));
        }
        vitals_.TakePages(std::move(*pages));
      });
}

std::string LocalAgent::FollowStream(int local_rank, keeper::Stream stream,
                                     const StreamPlan& plan) {
  std::string path = StreamPath(options_.dirs, assignment_, local_rank, stream, plan.file);
  const std::string prefix = LinePrefix(options_.output, assignment_.role,
                                        assignment_.rank_offset + local_rank, local_rank);
  OutputPump::Route route;
  route.path = plan.display == StreamDisplay::kNone ? "" : path;
  route.is_spool = plan.file == StreamFile::kSpool;
  route.is_wanted = plan.file != StreamFile::kNone;
  if (plan.display != StreamDisplay::kPlain) {
    route.format = LineFormat::Prefixed(prefix);
  }
  output_.Follow(local_rank, stream, std::move(route));
  if (filtered_ != nullptr) {
    OutputPump::Route filtered{.is_wanted = plan.is_filtered};
    if (plan.is_filtered) {
      filtered.path = path;
      filtered.format = LineFormat::Prefixed(prefix, FilterTexts(options_.output, SetOf(stream)));
      filtered.target = FilteredPath(options_.dirs, assignment_, stream);
    }
    filtered_->pump().Follow(local_rank, stream, std::move(filtered));
  }
  return path;
}

void LocalAgent::OnLogGrew(const keeper::LogGrewReport& report) {
  if (report.life != life()) {
    return;
  }
  has_logged_.insert({report.local_rank, report.stream});
  output_.Grew(report.local_rank, report.stream, report.size_bytes);
  if (filtered_ != nullptr) {
    filtered_->pump().Grew(report.local_rank, report.stream, report.size_bytes);
  }
}

void LocalAgent::OnLogData(const keeper::LogDataReport& report) {
  if (report.life != life()) {
    return;
  }
  output_.Data(report.local_rank, report.stream, report.data);
  if (filtered_ != nullptr) {
    filtered_->pump().Data(report.local_rank, report.stream, report.data);
  }
}

void LocalAgent::OnLogDegraded(const keeper::LogDegradedReport& report) {
  if (report.life != life()) {
    return;
  }
  if (has_logged_.count({report.local_rank, report.stream}) == 0) {
    lost_logs_.insert({report.local_rank, report.stream});
  }
  WarnOfLogs(absl::StrCat("write ", report.path, ": ", report.why));
}

/// Warns, once, that log files cannot be written.
void LocalAgent::WarnOfLogs(const std::string& what) {
  Log(std::exchange(has_warned_of_logs_, true) ? LogLevel::kInfo : LogLevel::kWarning,
      absl::StrCat("cannot ", what,
                   "; output that cannot be logged to a file is only shown here (warned once)"));
}

/// The log that says most about a failure.
std::string LocalAgent::LogPathOf(int local_rank) const {
  for (const keeper::Stream stream : {keeper::Stream::kStderr, keeper::Stream::kStdout}) {
    const StreamPlan plan = PlanStream(options_.output, local_rank, SetOf(stream));
    const bool is_made = !plan.opens_late || has_logged_.count({local_rank, stream}) > 0;
    if (plan.file == StreamFile::kLog && is_made && lost_logs_.count({local_rank, stream}) == 0) {
      return StreamPath(options_.dirs, assignment_, local_rank, stream, StreamFile::kLog);
    }
  }
  return "";
}

bool LocalAgent::ResumeOutput() { return output_.Pump(); }

bool LocalAgent::AwaitOutput(MonoTime deadline) {
  if (!output_.is_reading()) {
    return false;
  }
  output_.Await(deadline);
  return true;
}

void LocalAgent::DrainOutput() {
  FinishFilteredOutput();
  output_.Drain();
}

bool LocalAgent::AwaitFilteredOutput(MonoTime deadline) {
  return filtered_ == nullptr || filtered_->Await(deadline);
}

void LocalAgent::FinishFilteredOutput() {
  if (filtered_ != nullptr) {
    filtered_->Finish();
  }
}

}  // namespace fsdprun
