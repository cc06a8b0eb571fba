#include "launcher/run/job_end.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/local/file_thread.h"
#include "base/error_text.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/report/failure_report.h"

namespace fsdprun {
namespace {

constexpr Duration kSignalCheckInterval = std::chrono::milliseconds(100);
/// How long a file system that hangs may delay the exit.
constexpr Duration kErrorFileTimeout = std::chrono::seconds(1);

void Print(const EndContext& context, absl::string_view text) {
  context.console.WriteLines(ConsoleStream::kError,
                             absl::StrCat(ProgramName(context.program), ": ", text));
}

// Returns an errno.
int WriteFile(const std::string& path, absl::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) {
    return errno;
  }
  return WriteAll(file.get(), text);
}

// Atomically: readers see the old content or the new one. Returns an errno.
int ReplaceFile(const std::string& path, const std::string& text) {
  const std::string temporary = absl::StrCat(path, ".", ::getpid());
  int error = WriteFile(temporary, text);
  if (error == 0 && ::rename(temporary.c_str(), path.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) {
    ::unlink(temporary.c_str());
  }
  return error;
}

// Reports the root cause to the outer launcher, if this one was started by one.
void WriteErrorFile(const std::string& json, const EndContext& context) {
  const auto it = context.environment.find("TORCHELASTIC_ERROR_FILE");
  if (it == context.environment.end() || it->second.empty()) {
    return;
  }
  const std::string& path = it->second;
  const auto error = std::make_shared<int>(0);  // The thread may outlive this call.
  FileThread files(context.loop);
  files.Run([path, json, error] { *error = ReplaceFile(path, json); }, [] {});
  if (!files.Await(MonoNow() + kErrorFileTimeout)) {
    Print(context,
          absl::StrCat("cannot write the error file ", path,
                       ": its file system did not answer within ", ToSeconds(kErrorFileTimeout),
                       " s; the launcher that set TORCHELASTIC_ERROR_FILE learns only the "
                       "exit code. Look at that file system"));
  } else if (*error != 0) {
    Print(context, absl::StrCat("cannot write the error file ", path, ": ", ErrorText(*error)));
  }
}

}  // namespace

bool OutputDrain::IsOver() {
  if (MonoNow() >= deadline_ || signals_.TakePending() != 0) {
    deadline_ = std::min(deadline_, MonoNow());
    return true;
  }
  return false;
}

void OutputDrain::ShowRemainingOutput(LocalAgent& agent) {
  while (!agent.AwaitFilteredOutput(std::min(deadline_, MonoNow() + kSignalCheckInterval)) &&
         !IsOver()) {
  }
  agent.FinishFilteredOutput();
  while (!agent.ResumeOutput() && !agent.OutputHangs()) {
    const MonoTime until = std::min(deadline_, MonoNow() + kSignalCheckInterval);
    if (!agent.AwaitOutput(until)) {
      console_.WaitForRoom(until);
    }
    if (IsOver()) {
      return;
    }
  }
  const bool hangs = agent.OutputHangs();
  agent.DrainOutput();
  WaitForReader();
  all_shown_ = !hangs && console_.WaitWritten(MonoNow());
}

void OutputDrain::WaitForReader() {
  while (!console_.WaitWritten(std::min(deadline_, MonoNow() + kSignalCheckInterval))) {
    if (IsOver()) {
      return;
    }
  }
}

void ReportOutcome(const JobOutcome& outcome, const EndContext& context) {
  if (outcome.kind == OutcomeKind::kSucceeded) {
    return;
  }
  const std::string report = FormatFailureReport(outcome, {context.plan.program.front()});
  if (outcome.kind == OutcomeKind::kFailed && !report.empty()) {
    context.console.WriteLines(ConsoleStream::kError, report);
    WriteErrorFile(LauncherErrorJson(outcome), context);
  } else {
    ReportReason(FormatOutcomeLine(outcome), context);
  }
}

void ReportReason(const std::string& reason, const EndContext& context) {
  Print(context, reason);
  WriteErrorFile(LauncherErrorJson(reason), context);
}

}  // namespace fsdprun
