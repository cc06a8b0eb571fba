// The commands about running jobs that the coordinator answers by itself.

#include <csignal>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "fsdpctl/jobs/status_json.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/job_command.h"
#include "fsdpctl/run/worker_text.h"
#include "fsdpctl/screen/screen.h"
#include "fsdpctl/top/make_frame.h"

namespace fsdprun {
namespace {

std::string TextOf(const v1::JobStatus& status, const JobOptions& options,
                   const Environment& environment) {
  if (options.is_json) {
    return StatusJson(status, options.with_workers) + "\n";
  }
  if (!options.with_workers) {
    return StatusText(status);
  }
  return absl::StrCat(StatusText(status), "\n", top::WorkersText(status, TextColumns(environment)));
}

}  // namespace

int JobList(const ControlContext& context) {
  return RunJobCommand(CliProgram::kJobList, context,
                       [](const JobOptions& options, const Environment& environment) {
                         const std::vector<JobEntry> jobs = LocalJobs(environment);
                         Show(options.is_json ? absl::StrCat(JobListJson(jobs), "\n")
                                              : JobListText(jobs, absl::ToUnixMillis(absl::Now())));
                         return absl::OkStatus();
                       });
}

int JobStatus(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobStatus, context,
      [](const JobOptions& options, const Environment& environment) {
        v1::ControlQuestion question;
        question.mutable_status()->set_follow(options.follows);
        question.mutable_status()->set_with_workers(options.with_workers);
        top::UseTerminalsCharacters();
        bool is_first = true;
        return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
          const bool is_separated = !options.is_json && !std::exchange(is_first, false);
          Show(absl::StrCat(is_separated ? "\n" : "",
                            TextOf(answer.status(), options, environment)));
        });
      });
}

int JobEvents(const ControlContext& context) {
  return RunJobCommand(
      CliProgram::kJobEvents, context,
      [](const JobOptions& options, const Environment& environment) {
        v1::ControlQuestion question;
        question.mutable_events()->set_follow(options.follows);
        return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
          if (answer.events().forgotten() > 0) {
            std::fprintf(stderr, "fsdpctl events: %llu earlier ones are not known any more\n",
                         static_cast<unsigned long long>(answer.events().forgotten()));
          }
          for (const std::string& line : answer.events().lines()) {
            Show((options.is_json ? line : EventText(line)) + "\n");
          }
        });
      });
}

int JobRestart(const ControlContext& context) {
  return RunJobCommand(CliProgram::kJobRestart, context,
                       [](const JobOptions& options, const Environment& environment) {
                         v1::ControlQuestion question;
                         question.mutable_restart();
                         return AskChosenJob(options, environment, question, ShowDone);
                       });
}

int JobStop(const ControlContext& context) {
  return RunJobCommand(CliProgram::kJobStop, context,
                       [](const JobOptions& options, const Environment& environment) {
                         v1::ControlQuestion question;
                         question.mutable_stop()->set_signal(SIGTERM);
                         question.mutable_stop()->set_now(options.now);
                         return AskChosenJob(options, environment, question, ShowDone);
                       });
}

}  // namespace fsdprun
