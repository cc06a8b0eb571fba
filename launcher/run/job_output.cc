#include "launcher/run/job_output.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/report/progress_line.h"
#include "launcher/run/machine.h"

namespace fsdprun {
namespace {

const char* ValueIn(const Environment& environment, const char* name) {
  const auto it = environment.find(name);
  return it == environment.end() ? nullptr : it->second.c_str();
}

ConsoleStream ConsoleStreamOf(keeper::Stream stream) {
  return stream == keeper::Stream::kStdout ? ConsoleStream::kOut : ConsoleStream::kError;
}

}  // namespace

JobOutput::JobOutput(EventLoop& loop, CliProgram program, const LaunchPlan& plan,
                     const Environment& environment)
    : loop_(loop),
      program_(program),
      plan_(plan),
      environment_(environment),
      console_(
          OptionsForProcess(ValueIn(environment, "TERM"), ValueIn(environment, "COLUMNS")),
          [this] { loop_.Post([this] { ResumeOutput(); }); },
          [this](int error) {
            const bool may_pass = error == ENOSPC || error == EDQUOT;
            Print(absl::StrCat(
                "cannot write the workers' output to standard output: ", ErrorText(error), "; ",
                may_pass ? "what comes while that lasts" : "the rest of it",
                " is lost there, and the exit code will not be 0. Log files, if there are any, "
                "go on"));
          }) {
  RouteLogTo(&console_);
}

JobOutput::~JobOutput() { RouteLogTo(nullptr); }

ConsoleChannel::Progress JobOutput::WrittenOf(keeper::Stream stream) {
  return console_.ProgressOf(ConsoleStreamOf(stream));
}

int JobOutput::Close(MonoTime deadline, int code) {
  console_.Close(deadline);
  return code == 0 && console_.has_failed() ? kOutputLostCode : code;
}

void JobOutput::Print(absl::string_view text) {
  console_.WriteLines(ConsoleStream::kError, absl::StrCat(ProgramName(program_), ": ", text));
}

void JobOutput::ShowProgress(const Progress& progress) {
  if (console_.draws_progress() && (progress.step >= 0 || !progress.text.empty())) {
    console_.SetProgress(FormatProgressLine(progress));
  }
}

OutputPump::Sink JobOutput::MakeSink() {
  OutputPump::Sink sink;
  sink.write = [this](keeper::Stream stream, const std::string&, absl::string_view lines) {
    console_.WriteLines(ConsoleStreamOf(stream), lines);
  };
  sink.has_room = [this](keeper::Stream stream) {
    return console_.HasRoom(ConsoleStreamOf(stream));
  };
  sink.on_missing = [this](keeper::Stream stream, const std::string&,
                           const MissingOutput& missing) {
    console_.WriteLines(ConsoleStreamOf(stream), Describe(missing));
  };
  return sink;
}

void JobOutput::ResumeOutput() {
  if (agent_ != nullptr) {
    agent_->ResumeOutput();
  }
  if (on_room_) {
    on_room_();
  }
}

absl::Status JobOutput::MakeRunDirs(const std::string& run_id) {
  run_id_ = run_id;
  ASSIGN_OR_RETURN(dirs_, fsdprun::MakeRunDirs(plan_, run_id_, environment_));
  return absl::OkStatus();
}

void JobOutput::TakeRunDirs(const std::string& run_id, const RunDirs& dirs) {
  run_id_ = run_id;
  dirs_ = dirs;
}

void JobOutput::ChangeRunDirs(std::function<void(const absl::Status&)> then) {
  then_ = std::move(then);
  change_ = std::make_unique<RunDirChange>(
      loop_, dirs_.logs,
      [plan = plan_, run_id = run_id_, environment = environment_] {
        return fsdprun::MakeRunDirs(plan, run_id, environment);
      },
      [this](const RunDirChange::Result& result) { OnRunDirs(result); });
}

void JobOutput::OnRunDirs(const RunDirChange::Result& result) {
  if (result.dirs.ok()) {
    earlier_.push_back(dirs_);
    if (result.is_old_removed) {
      earlier_.back().logs.clear();
    }
    dirs_ = *result.dirs;
  }
  then_(result.dirs.status());
}

void JobOutput::RemoveLogs() {
  for (const RunDirs* dirs : AllDirs()) {
    if (plan_.log_dir.empty() && !dirs->logs.empty()) {
      RemoveTree(loop_, dirs->logs);
    }
  }
}

/// No worker was started, or none has left anything. Folders in a place that the user named stay,
/// as torchrun's do.
bool JobOutput::RemoveEmptyLogs() {
  return plan_.log_dir.empty() ? RemoveEmptyFolders(loop_, dirs_.logs)
                               : RemoveIfEmpty(loop_, dirs_.logs);
}

void JobOutput::RemoveVitals() {
  for (const RunDirs* dirs : AllDirs()) {
    if (!dirs->vitals.empty()) {
      RemoveTree(loop_, dirs->vitals);
    }
  }
}

void JobOutput::RemoveSpools() {
  for (const RunDirs* dirs : AllDirs()) {
    if (!dirs->spool.empty()) {
      RemoveTree(loop_, dirs->spool);
    }
  }
}

std::vector<const RunDirs*> JobOutput::AllDirs() const {
  std::vector<const RunDirs*> all = {&dirs_};
  for (const RunDirs& dirs : earlier_) {
    all.push_back(&dirs);
  }
  return all;
}

void JobOutput::RemoveRunDirs() {
  RemoveVitals();
  RemoveLogs();
  RemoveSpools();
}

void JobOutput::EndRunDirs(bool has_succeeded, bool all_shown) {
  RemoveVitals();
  if (all_shown) {
    RemoveSpools();
  } else if (!dirs_.spool.empty()) {
    Print(
        absl::StrCat("not all output could be shown; what no log keeps of it is in ", dirs_.spool));
  }
  if (has_succeeded && all_shown) {
    RemoveLogs();
  } else if (!dirs_.logs.empty() && !RemoveEmptyLogs()) {
    Print(absl::StrCat(all_shown ? "" : "not all output could be shown; ",
                       "logs of this node's workers are in ", dirs_.logs));
  }
}

}  // namespace fsdprun
