#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "fsdpctl/run/client.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/commands.h"
#include "fsdpctl/slurm/growth.h"
#include "fsdpctl/slurm/job_environment.h"
#include "fsdpctl/slurm/slurm_values.h"
#include "fsdpctl/slurm/submission.h"
#include "launcher/cli/program_texts.h"
#include "launcher/directory/join_record_file.h"
#include "launcher/run/exec_words.h"
#include "launcher/slurm/allocation.h"
#include "launcher/slurm/queue_listing.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

constexpr char kJoin[] = "fsdpctl slurm join";

/// What sbatch answers to --parsable: the job's id and, where there are several, its cluster.
std::string DescribeJob(const std::string& answer, bool is_parsable) {
  const std::vector<std::string> parts = absl::StrSplit(answer, absl::MaxSplits(';', 1));
  if (is_parsable) {
    return absl::StrCat(answer, "\n");
  }
  return absl::StrCat("Submitted batch job ", parts.front(),
                      parts.size() > 1 ? absl::StrCat(" on cluster ", parts.back()) : "", "\n");
}

absl::Status Submit(const Submission& submission, const Environment& environment) {
  ASSIGN_OR_RETURN(const ClientResult result,
                   RunClient({"sbatch", "--parsable"}, SbatchEnvironment(environment),
                             BatchText(submission.file)));
  const std::string answer(absl::StripAsciiWhitespace(result.output));
  if (result.code != 0 || answer.empty()) {
    return absl::OutOfRangeError(absl::StrCat("sbatch, given this batch file, ended with code ",
                                              result.code,
                                              "; its message is above, --dry-run shows the file"));
  }
  Show(DescribeJob(answer, submission.is_parsable));
  return absl::OkStatus();
}

/// Does what is asked for with the job, or instead of it.
int Carry(CliProgram program, const Submission& submission, const Environment& environment) {
  if (const std::optional<int> shown = ShowText(program, submission.request)) {
    return *shown;
  }
  if (submission.request == Request::kDryRun) {
    Show(BatchText(submission.file));
    return 0;
  }
  const absl::Status status = Submit(submission, environment);
  return status.ok() ? 0 : Fail(ProgramName(program), status);
}

absl::StatusOr<std::vector<ListedJob>> ListJobs(const Environment& environment) {
  ASSIGN_OR_RETURN(const ClientResult result,
                   RunClient(ListJobsCommand(), ListJobsEnvironment(environment), ""));
  if (result.code != 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot see what runs: squeue ended with code ", result.code,
        "; its message is above. If Slurm's controller does not answer now, try again later"));
  }
  return ReadListedJobs(result.output);
}

absl::StatusOr<Submission> MakeGrowth(const ControlContext& context) {
  ASSIGN_OR_RETURN(const GrowthOptions growth, ReadGrowth(context.args, context.environment));
  if (growth.request != Request::kRun && growth.request != Request::kDryRun) {
    return Submission{.request = growth.request};
  }
  ASSIGN_OR_RETURN(const SlurmJoinRecord record, ReadJoinRecord(context.environment, growth.job));
  ASSIGN_OR_RETURN(const std::vector<ListedJob> queue, ListJobs(context.environment));
  return PlanGrowth(growth, record, queue, context.fsdpctl);
}

/// Returns only if it fails.
absl::Status BecomeSrun(const std::string& job, const Environment& environment) {
  ASSIGN_OR_RETURN(const auto allocation, ReadAllocation(environment));
  if (!allocation.has_value() || allocation->task.has_value()) {
    return absl::OutOfRangeError(
        "this is no batch file's shell (SLURM_JOB_ID); fsdpctl slurm grow submits a job that "
        "runs this");
  }
  ASSIGN_OR_RETURN(const SlurmJoinRecord record, ReadJoinRecord(environment, job));
  // Where nothing is said of the job, its agents find out whether it runs.
  if (const auto queue = ListJobs(environment); queue.ok()) {
    RETURN_IF_ERROR(CheckIsRunning(job, *queue));
  }
  ASSIGN_OR_RETURN(const std::vector<std::string> command, JoinCommand(*allocation, record));
  if (::chdir(record.folder.c_str()) != 0) {
    return absl::OutOfRangeError(absl::StrCat("cannot change to the folder of job ", job, ", ",
                                              record.folder, ": ", ErrorText(errno)));
  }
  Environment joined = SrunEnvironment(JoinEnvironment(record, environment), record.coordinators,
                                       record.run_id, record.token);
  joined.emplace(kEnvSlurmJoins, "1");
  const std::vector<std::string> variables = ExecVariables(joined);
  ::execvpe(command.front().c_str(), ExecPointers(command).data(), ExecPointers(variables).data());
  return absl::OutOfRangeError(
      absl::StrCat("cannot start ", command.front(), ": ", ErrorText(errno), "; is it on PATH?"));
}

}  // namespace

int SlurmSubmit(const ControlContext& context) {
  const auto submission = PlanSubmission(context.args, context.environment, context.fsdprun);
  if (!submission.ok()) {
    return Fail(ProgramName(CliProgram::kSlurmSubmit), submission.status());
  }
  return Carry(CliProgram::kSlurmSubmit, *submission, context.environment);
}

int SlurmGrow(const ControlContext& context) {
  const absl::StatusOr<Submission> submission = MakeGrowth(context);
  if (!submission.ok()) {
    return Fail(ProgramName(CliProgram::kSlurmGrow), submission.status());
  }
  return Carry(CliProgram::kSlurmGrow, *submission, context.environment);
}

int SlurmJoin(const ControlContext& context) {
  if (context.args.size() != 1 || !IsJobName(context.args.front())) {
    return Fail(kJoin, absl::InvalidArgumentError(
                           "expected the id of the job that is joined; usage: fsdpctl slurm join "
                           "JOBID, in a batch file that fsdpctl slurm grow has written"));
  }
  return Fail(kJoin, BecomeSrun(context.args.front(), context.environment));
}

}  // namespace fsdprun
