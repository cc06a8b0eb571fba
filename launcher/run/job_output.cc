#include "launcher/run/job_output.h"

#include <utility>

#include "absl/strings/str_cat.h"
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

}  // namespace

JobOutput::JobOutput(EventLoop& loop, CliProgram program, const LaunchPlan& plan,
                     const Environment& environment)
    : loop_(loop),
      program_(program),
      plan_(plan),
      environment_(environment),
      console_(OptionsForProcess(ValueIn(environment, "TERM"), ValueIn(environment, "COLUMNS")),
               [this] { loop_.Post([this] { ResumeOutput(); }); }) {
  RouteLogTo(&console_);
}

JobOutput::~JobOutput() { RouteLogTo(nullptr); }

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
  sink.write = [this](keeper::Stream stream, absl::string_view lines) {
    console_.WriteLines(
        stream == keeper::Stream::kStdout ? ConsoleStream::kOut : ConsoleStream::kError, lines);
  };
  sink.has_room = [this] { return console_.HasRoom(); };
  return sink;
}

void JobOutput::ResumeOutput() {
  if (agent_ != nullptr) {
    agent_->ResumeOutput();
  }
}

absl::Status JobOutput::MakeRunDir(const std::string& run_id) {
  run_id_ = run_id;
  ASSIGN_OR_RETURN(run_dir_, fsdprun::MakeRunDir(plan_, run_id_, environment_));
  return absl::OkStatus();
}

void JobOutput::ChangeRunDir(std::function<void(const absl::Status&)> then) {
  then_ = std::move(then);
  run_dir_change_ = std::make_unique<RunDirChange>(
      loop_, run_dir_,
      [plan = plan_, run_id = run_id_, environment = environment_] {
        return fsdprun::MakeRunDir(plan, run_id, environment);
      },
      [this](const RunDirChange::Result& result) { OnRunDir(result); });
}

void JobOutput::OnRunDir(const RunDirChange::Result& result) {
  if (result.run_dir.ok()) {
    if (!result.is_old_removed) {
      earlier_run_dirs_.push_back(run_dir_);
    }
    run_dir_ = *result.run_dir;
  }
  then_(result.run_dir.status());
}

void JobOutput::RemoveRunDirs() {
  earlier_run_dirs_.push_back(run_dir_);
  for (const std::string& run_dir : earlier_run_dirs_) {
    if (plan_.log_dir.empty() && !run_dir.empty()) {
      RemoveTree(loop_, run_dir);
    }
  }
}

void JobOutput::EndRunDirs(bool has_succeeded, bool all_shown) {
  if (has_succeeded && all_shown) {
    RemoveRunDirs();
  } else if (!RemoveIfEmpty(loop_, run_dir_)) {  // Empty if no worker was ever started.
    Print(absl::StrCat(all_shown ? "" : "not all output could be shown; ",
                       "logs of this node's workers are in ", run_dir_));
  }
}

}  // namespace fsdprun
