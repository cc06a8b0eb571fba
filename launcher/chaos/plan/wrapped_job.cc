#include "launcher/chaos/plan/wrapped_job.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/cli/option_lookup.h"
#include "launcher/cli/option_values.h"

namespace fsdprun::chaos {
namespace {

constexpr char kLauncher[] = "fsdprun";

bool IsLauncher(const std::string& program) {
  const size_t slash = program.rfind('/');
  return program.substr(slash == std::string::npos ? 0 : slash + 1) == kLauncher;
}

/// What is more than a launcher for each node.
bool IsWholeJob(const RawOptions& options) {
  for (const char* name : {"standalone", "coordinator", "detach", "ssh"}) {
    if (options.IsOn(name)) {
      return true;
    }
  }
  return options.Find("agents") != nullptr || options.Find("hostfile") != nullptr ||
         options.Find("attach") != nullptr;
}

absl::Status CheckMeeting(const RawOptions& options) {
  constexpr char kElse[] =
      ": what is started here for several nodes meets by c10d, so leave it out, or start the nodes "
      "and attach with --job";
  for (const char* name : {"node-rank", "master-addr", "master-port"}) {
    if (const RawValue* value = options.Find(name)) {
      return absl::OutOfRangeError(absl::StrCat(value->source, " of the command", kElse));
    }
  }
  const RawValue* backend = options.Find("rdzv-backend");
  if (backend != nullptr && backend->text != "c10d") {
    return absl::OutOfRangeError(
        absl::StrCat(backend->source, " ", backend->text, " of the command", kElse));
  }
  return absl::OkStatus();
}

/// The command's options over what variables say.
RawOptions SaidOf(const RawOptions& options, const Environment& environment) {
  RawOptions said = options;
  const RawOptions variables = OptionsOfEnvironment(CliProgram::kFsdprun, environment);
  said.values.insert(variables.values.begin(), variables.values.end());
  return said;
}

/// The options as they were given, but for those that say where the nodes meet, and what only the
/// coordinator is to know.
std::vector<std::string> CommonWords(const WrappedJob& job) {
  std::vector<std::string> words{job.command.front()};
  for (const auto& [name, value] : job.options.values) {
    if (name == "rdzv-endpoint" || name == "rdzv-backend" || name == "rdzv-id" ||
        name == "rdzv-conf" || name == "journal") {
      continue;
    }
    const auto option = FindOption(CliProgram::kFsdprun, name);
    const bool takes_value = option.ok() && (*option)->takes_value();
    words.push_back(takes_value ? absl::StrCat("--", name, "=", value.text)
                                : absl::StrCat("--", name));
  }
  words.emplace_back("--rdzv-backend=c10d");
  words.push_back(absl::StrCat("--rdzv-id=", job.run_id));
  return words;
}

std::string TextOf(const WrappedJob& job, const char* option, const std::string& otherwise = "") {
  const RawValue* value = job.said.Find(option);
  return value == nullptr || value->text.empty() ? otherwise : value->text;
}

std::string Endpoint(uint16_t port) { return absl::StrCat("--rdzv-endpoint=127.0.0.1:", port); }

}  // namespace

absl::StatusOr<WrappedJob> ReadWrappedJob(const std::vector<std::string>& command, int nodes,
                                          const std::string& run_id,
                                          const Environment& environment) {
  WrappedJob job{.command = command, .run_id = run_id};
  const bool is_launcher = IsLauncher(command.front());
  if (is_launcher) {
    ASSIGN_OR_RETURN(job.options, OptionsOfArguments(CliProgram::kFsdprun,
                                                     {command.begin() + 1, command.end()}));
    job.said = SaidOf(job.options, environment);
  }
  const RawValue* nnodes = job.said.Find("nnodes");
  NodeNumbers numbers;
  if (nnodes != nullptr) {
    ASSIGN_OR_RETURN(numbers, ToNodeNumbers(*nnodes));
  }
  if (!is_launcher || numbers.max == 1 || IsWholeJob(job.said)) {
    if (nodes > 1) {
      return absl::OutOfRangeError(
          absl::StrCat("--nodes ", nodes,
                       ": only an fsdprun with --nnodes of several nodes is started more than "
                       "once"));
    }
    return job;
  }
  RETURN_IF_ERROR(CheckMeeting(job.said));
  job.form = Form::kNodes;
  job.nodes = nodes > 0 ? nodes : numbers.max;
  if (job.nodes < numbers.min) {
    return absl::OutOfRangeError(absl::StrCat("--nodes ", nodes, ": the job needs ", numbers.min));
  }
  job.run_id = TextOf(job, "rdzv-id", run_id);
  return job;
}

std::vector<std::string> CoordinatorCommand(const WrappedJob& job, uint16_t port,
                                            const std::string& journal) {
  std::vector<std::string> words = CommonWords(job);
  words.push_back(Endpoint(port));
  words.emplace_back("--coordinator");
  words.push_back(absl::StrCat("--journal=", TextOf(job, "journal", journal)));
  if (const std::string conf = TextOf(job, "rdzv-conf"); !conf.empty()) {
    words.push_back(absl::StrCat("--rdzv-conf=", conf));
  }
  return words;
}

std::vector<std::string> NodeCommand(const WrappedJob& job, uint16_t port) {
  std::vector<std::string> words = CommonWords(job);
  words.push_back(Endpoint(port));
  const std::string conf = TextOf(job, "rdzv-conf");
  words.push_back(absl::StrCat("--rdzv-conf=", conf, conf.empty() ? "" : ",", "is_host=0"));
  words.emplace_back("--");
  words.insert(words.end(), job.options.program.begin(), job.options.program.end());
  return words;
}

}  // namespace fsdprun::chaos
