#include "launcher/run/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "base/write_all.h"

namespace fsdprun {

/// While a task runs, the thread's; else the loop's.
struct EventFile::File {
  explicit File(MakePath its_make) : make(std::move(its_make)) {}

  const MakePath make;
  std::string path;
  UniqueFd fd;
  /// A line was cut off: the next begins on a line of its own.
  bool is_torn = false;
  /// Why the latest write failed; empty: it went well.
  std::string problem;

  void Open() {
    if (path.empty()) {
      const absl::StatusOr<std::string> made = make();
      if (!made.ok()) {
        problem = std::string(made.status().message());
        return;
      }
      path = *made;
    }
    fd = UniqueFd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    problem = fd.valid() ? "" : ErrorText(errno);
  }

  /// Empty, or why it could not be written.
  std::string Leave(const std::string& name, const std::string& text) {
    if (!fd.valid()) {
      Open();
    }
    if (path.empty()) {
      return problem;
    }
    const std::string beside = path.substr(0, path.rfind('/') + 1) + name;
    const std::string unfinished = beside + ".new";
    std::ofstream file(unfinished, std::ios::trunc);
    file << text;
    file.close();
    const bool is_there = file && ::rename(unfinished.c_str(), beside.c_str()) == 0;
    return is_there ? "" : ErrorText(errno);
  }

  void Write(const std::string& text) {
    problem.clear();
    if (!fd.valid()) {
      Open();
    }
    const std::string all = is_torn ? absl::StrCat("\n", text) : text;
    size_t done = 0;
    if (problem.empty()) {
      const int error = WriteAll(fd.get(), all, &done);
      problem = error != 0 ? ErrorText(error) : "";
    }
    is_torn = done == 0 ? is_torn : all[done - 1] != '\n';
  }
};

EventFile::EventFile(EventLoop& loop, std::string path)
    : EventFile(loop, path, [path] { return absl::StatusOr<std::string>(path); }) {}

EventFile::EventFile(EventLoop& loop, std::string name, MakePath make)
    : name_(std::move(name)), file_(std::make_shared<File>(std::move(make))), files_(loop) {}

void EventFile::Append(std::string line) {
  if (waiting_.size() >= kMaxWaiting) {
    ++lost_;
    return;
  }
  waiting_.push_back(std::move(line));
  WriteWaiting();
}

void EventFile::WriteWaiting() {
  if (is_writing_ || (waiting_.empty() && beside_.empty())) {
    return;
  }
  is_writing_ = true;
  if (waiting_.empty()) {
    return WriteBeside();
  }
  std::string text;
  for (const std::string& line : waiting_) {
    absl::StrAppend(&text, line, "\n");
  }
  const size_t lines = waiting_.size();
  waiting_.clear();
  files_.Run([file = file_, text = std::move(text)] { file->Write(text); },
             [this, lines] { OnWritten(lines); });
}

void EventFile::WriteBeside() {
  const auto problem = std::make_shared<std::string>();
  std::string name = beside_.front().first;
  files_.Run([file = file_, left = std::move(beside_.front()),
              problem] { *problem = file->Leave(left.first, left.second); },
             [this, name, problem] {
               if (!problem->empty()) {
                 Log(LogLevel::kWarning, absl::StrCat("cannot write ", name, " beside ", name_,
                                                      ": ", *problem, "; the job goes on"));
               }
               is_writing_ = false;
               WriteWaiting();
             });
  beside_.pop_front();
}

void EventFile::OnWritten(size_t lines) {
  is_writing_ = false;
  if (!file_->problem.empty()) {
    lost_ += lines;  // Some of them may be there.
    if (!std::exchange(has_warned_, true)) {
      Log(LogLevel::kWarning,
          absl::StrCat("cannot write events to ", name_, ": ", file_->problem,
                       "; the job goes on, and its events are lost until there is room"));
    }
  }
  WriteWaiting();
}

void EventFile::LeaveBeside(std::string name, std::string text) {
  beside_.emplace_back(std::move(name), std::move(text));
  WriteWaiting();
}

void EventFile::Finish(MonoTime deadline) {
  files_.RunFinished();
  while (is_writing_ && files_.Await(deadline)) {
  }
  lost_ += waiting_.size();
  if (lost_ > 0 || is_writing_) {
    Log(LogLevel::kWarning,
        absl::StrCat(is_writing_ ? "the file system of " : "", name_,
                     is_writing_ ? " does not answer: the last events of this run are lost"
                                 : absl::StrCat(" lacks ", lost_, " event(s) of this run")));
  }
}

}  // namespace fsdprun
