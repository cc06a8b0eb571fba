#include "fsdpctl/slurm/growth.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "fsdpctl/slurm/directives.h"
#include "fsdpctl/slurm/shell_quote.h"
#include "fsdpctl/slurm/slurm_values.h"
#include "launcher/cli/command_line.h"
#include "launcher/slurm/slurm_plan.h"

namespace fsdprun {
namespace {

constexpr CliProgram kGrow = CliProgram::kSlurmGrow;
constexpr char kRunning[] = "RUNNING";

/// The name of a job that grows this one, and its comment if it was given another name: Slurm keeps
/// both from the submission on, so that its nodes are known before an agent has joined from there.
std::string NameOfGrowth(const std::string& job) { return absl::StrCat("grow-", job); }

void MarkGrowth(const std::string& job, std::vector<Directive>* directives) {
  const auto last = [directives](const char* name) {
    return std::find_if(directives->rbegin(), directives->rend(),
                        [name](const Directive& directive) { return directive.name == name; });
  };
  if (last("job-name")->value != NameOfGrowth(job) && last("comment") == directives->rend()) {
    directives->push_back({"comment", NameOfGrowth(job)});
  }
}

/// Of a list of resources of each node, what sbatch takes for --gres.
std::string GresOf(absl::string_view resources, bool says_gpus) {
  std::vector<absl::string_view> gres;
  for (absl::string_view part : absl::StrSplit(resources, ',')) {
    const bool is_gres = absl::ConsumePrefix(&part, "gres:") || absl::ConsumePrefix(&part, "gres/");
    if (is_gres && !(says_gpus && (part == "gpu" || absl::StartsWith(part, "gpu:")))) {
      gres.push_back(part);
    }
  }
  return absl::StrJoin(gres, ",");
}

/// By sbatch's names of options, what the job asked for that its variables do not say; empty for
/// nothing.
std::map<std::string, std::string> KindOf(const ListedJob& job, bool says_gpus) {
  const bool has_limit = TimeLimitSeconds(job.time_left).has_value();
  const bool is_unlimited = absl::EqualsIgnoreCase(job.time_left, "UNLIMITED");
  return {{"gres", GresOf(job.resources, says_gpus)},
          {"constraint", job.features == "(null)" ? "" : job.features},
          {"exclusive", job.shares == "NO" ? "1" : ""},
          {"time", has_limit || is_unlimited ? job.time_left : ""}};
}

/// The nodes of the job and of those that have joined it: two agents of a job on one node would
/// have one name.
std::string Members(const std::string& job, const std::vector<ListedJob>& queue) {
  std::vector<std::string> nodes;
  for (const ListedJob& listed : queue) {
    const std::string mark = NameOfGrowth(job);
    const bool is_member = listed.job == job || listed.name == mark || listed.comment == mark;
    if (is_member && listed.state == kRunning && !listed.nodes.empty()) {
      nodes.push_back(listed.nodes);
    }
  }
  return absl::StrJoin(nodes, ",");
}

/// What was asked for here comes before what the job has.
absl::Status AddNodesToExclude(const std::string& job, const std::string& members,
                               RawOptions* options) {
  const RawValue* given = options->Find("exclude");
  if (given != nullptr && absl::StrContains(given->text, '/')) {
    return absl::OkStatus();  // A file.
  }
  const std::string nodes = given == nullptr ? members : absl::StrCat(given->text, ",", members);
  if (!IsDirectiveValue(nodes)) {
    return absl::OutOfRangeError(absl::StrCat(
        "the names of the nodes that job ", job, " has are too long (", nodes.size(),
        " characters) for the line of a batch file that keeps the new job from them; write them to "
        "a file and give --exclude=./FILE"));
  }
  options->values["exclude"] = RawValue{absl::StrCat("job ", job), nodes};
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GrowthOptions> ReadGrowth(const std::vector<std::string>& args,
                                         const Environment& environment) {
  ASSIGN_OR_RETURN(RawOptions before, OptionsOfArguments(kGrow, args));
  std::vector<std::string> words = std::move(before.program);
  const std::string job = words.empty() ? "" : words.front();
  words.erase(words.begin(), words.begin() + (words.empty() ? 0 : 1));
  // Options may stand behind the job, too.
  ASSIGN_OR_RETURN(RawOptions options, OptionsOfArguments(kGrow, words));
  for (auto& [name, value] : before.values) {
    options.values.try_emplace(name, std::move(value));
  }
  GrowthOptions growth{.request = RequestOf(options), .job = job};
  if (IsForReader(growth.request)) {
    return growth;
  }
  if (!options.program.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", options.program.front(), "' follows the id of the job; one job grows at a time"));
  }
  if (!IsJobName(job)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "'", job, "' is not the id of a running job, such as 4711 or, of an array, 4711_2; usage: ",
        ProgramName(kGrow), " JOBID [options]"));
  }
  growth.options = WithVariables(kGrow, std::move(options), environment);
  RETURN_IF_ERROR(CheckSbatchValues(kGrow, growth.options));
  return growth;
}

absl::Status CheckIsRunning(const std::string& job, const std::vector<ListedJob>& queue) {
  std::string state = "over";
  for (const ListedJob& listed : queue) {
    if (listed.job == job) {
      state = listed.state;
    }
    if (listed.job == job && listed.state != kRunning) {
      break;
    }
  }
  if (state == kRunning) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat("job ", job, " does not run, but is ", state,
                                            "; there is nothing that nodes could join"));
}

absl::StatusOr<Submission> PlanGrowth(const GrowthOptions& growth, const SlurmJoinRecord& record,
                                      const std::vector<ListedJob>& queue,
                                      const std::string& fsdpctl) {
  RETURN_IF_ERROR(CheckIsRunning(growth.job, queue));
  RawOptions options = growth.options;
  std::map<std::string, std::string> resources = record.resources;
  const bool says_gpus =
      resources.contains("gpus-per-node") || options.Find("gpus-per-node") != nullptr;
  for (const ListedJob& listed : queue) {
    if (listed.job == growth.job) {
      resources.merge(KindOf(listed, says_gpus));
    }
  }
  for (const auto& [name, value] : resources) {
    if (!value.empty() && IsDirectiveValue(value)) {
      options.values.try_emplace(name, RawValue{absl::StrCat("job ", growth.job), value});
    }
  }
  RETURN_IF_ERROR(AddNodesToExclude(growth.job, Members(growth.job, queue), &options));
  NodeRange nodes;
  if (const RawValue* value = options.Find("nodes")) {
    ASSIGN_OR_RETURN(nodes, ToNodeRange(*value));
  }
  Submission submission{.request = growth.request, .is_parsable = options.IsOn("parsable")};
  ASSIGN_OR_RETURN(submission.file.directives,
                   MakeDirectives(kGrow, options, NameOfGrowth(growth.job), nodes));
  submission.file.directives.push_back({"no-kill", ""});
  MarkGrowth(growth.job, &submission.file.directives);
  submission.file.setup = TextOr(options, "setup", "");
  submission.file.command = {fsdpctl, "slurm", "join", growth.job};
  return submission;
}

absl::StatusOr<std::vector<std::string>> JoinCommand(const SlurmAllocation& allocation,
                                                     const SlurmJoinRecord& record) {
  ASSIGN_OR_RETURN(
      const LaunchPlan plan,
      ParseCommandLine(CliProgram::kFsdprun, {record.command.begin() + 1, record.command.end()},
                       record.environment, AnyMachine()));
  return SrunCommand(allocation, plan, record.command);
}

}  // namespace fsdprun
