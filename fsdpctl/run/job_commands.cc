// The commands about running jobs.

#include <csignal>
#include <cstdio>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "agent/rpc/call_proof.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/job_choice.h"
#include "fsdpctl/jobs/job_client.h"
#include "fsdpctl/jobs/job_options.h"
#include "fsdpctl/jobs/status_json.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/commands.h"
#include "fsdpctl/run/job_command.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/man_page.h"
#include "launcher/control/job_file.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/private_folder.h"
#include "launcher/directory/user_secret.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

std::vector<JobEntry> LocalJobs(const Environment& environment) {
  return ListJobs(JobsFolder(RuntimeFolder(environment)));
}

absl::StatusOr<std::string> TokenFor(const JobOptions& options, const Environment& environment) {
  if (options.takes_anybody) {
    return std::string(kNoToken);
  }
  ASSIGN_OR_RETURN(std::string token, GivenToken(environment, options.token_file));
  if (token.empty()) {
    ASSIGN_OR_RETURN(UserSecret secret, LoadUserSecret(environment));
    token = std::move(secret.value);
  }
  return token;
}

absl::StatusOr<JobAddress> AddressOf(const JobOptions& options, const Environment& environment) {
  if (options.endpoint.empty()) {
    ASSIGN_OR_RETURN(const JobEntry job, ChooseJob(LocalJobs(environment), options.job));
    return JobAddress{.target = absl::StrCat("unix:", job.socket), .run_id = job.run_id};
  }
  JobAddress address{.target = options.endpoint, .run_id = options.job};
  ASSIGN_OR_RETURN(address.token, TokenFor(options, environment));
  if (options.tls.any()) {
    ASSIGN_OR_RETURN(address.tls, Tls::Make(options.tls));
    address.tls_name = options.endpoint.substr(0, options.endpoint.rfind(':'));
  }
  return address;
}

}  // namespace

int RunJobCommand(CliProgram program, const ControlContext& context, const JobRun& run) {
  const absl::StatusOr<JobOptions> options = ReadJobOptions(program, context.args);
  if (!options.ok()) {
    return Fail(ProgramName(program), options.status());
  }
  switch (options->request) {
    case Request::kHelp:
      Show(HelpText(program));
      return 0;
    case Request::kManPage:
      Show(ManPage(program));
      return 0;
    case Request::kVersion:
      Show(absl::StrCat("fsdpctl ", kRelease, "\n"));
      return 0;
    default:
      break;
  }
  const absl::Status status = run(*options, context.environment);
  return status.ok() ? 0 : Fail(ProgramName(program), status);
}

absl::Status AskChosenJob(const JobOptions& options, const Environment& environment,
                          const v1::ControlQuestion& question,
                          const std::function<void(const v1::ControlAnswer&)>& on_answer) {
  ASSIGN_OR_RETURN(const JobAddress address, AddressOf(options, environment));
  return AskJob(address, question, on_answer);
}

void ShowDone(const v1::ControlAnswer& answer) { Show(absl::StrCat(answer.done().what(), "\n")); }

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
        bool is_first = true;
        return AskChosenJob(options, environment, question, [&](const v1::ControlAnswer& answer) {
          const bool is_separated = !options.is_json && !std::exchange(is_first, false);
          Show(absl::StrCat(is_separated ? "\n" : "", options.is_json
                                                          ? StatusJson(answer.status()) + "\n"
                                                          : StatusText(answer.status())));
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
