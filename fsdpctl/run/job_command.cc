#include "fsdpctl/run/job_command.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"
#include "base/status_macros.h"
#include "fsdpctl/jobs/job_choice.h"
#include "fsdpctl/run/command_end.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/private_folder.h"
#include "launcher/directory/user_secret.h"

namespace fsdprun {
namespace {

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

std::vector<JobEntry> LocalJobs(const Environment& environment) {
  return ListJobs(JobsFolder(RuntimeFolder(environment)));
}

int RunJobCommand(CliProgram program, const ControlContext& context, const JobRun& run) {
  const absl::StatusOr<JobOptions> options = ReadJobOptions(program, context.args);
  if (!options.ok()) {
    return Fail(ProgramName(program), options.status());
  }
  if (const std::optional<int> shown = ShowText(program, options->request)) {
    return *shown;
  }
  const absl::Status status = run(*options, context.environment);
  return status.ok() ? 0 : Fail(ProgramName(program), status);
}

absl::Status AskChosenJob(const JobOptions& options, const Environment& environment,
                          const v1::ControlQuestion& question,
                          const std::function<void(const v1::ControlAnswer&)>& on_answer,
                          std::optional<std::chrono::milliseconds> limit, CallStop* stop) {
  ASSIGN_OR_RETURN(const JobAddress address, AddressOf(options, environment));
  return AskJob(address, question, on_answer, limit, stop);
}

void ShowDone(const v1::ControlAnswer& answer) { Show(absl::StrCat(answer.done().what(), "\n")); }

}  // namespace fsdprun
