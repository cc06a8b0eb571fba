// Arguments and PET_* variables -> launch plan. Input: lines. A first line "agent" selects
// fsdp-agent, a line "env NAME=value" sets a variable, every other line is one argument.
// Properties: values are in the range on which the launcher relies; other spellings of the same
// options, and the same options from the environment, give the same plan.

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"
#include "launcher/cli/worker_command.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

constexpr MachineFacts kMachine{.usable_cpus = 6, .gpus = 2};

struct Input {
  CliProgram program = CliProgram::kFsdprun;
  std::vector<std::string> args;
  Environment environment;
};

Input Split(std::string_view text) {
  Input input;
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    const size_t equals = line.find('=');
    if (line == "agent" && input.args.empty()) {
      input.program = CliProgram::kFsdpAgent;
    } else if (absl::StartsWith(line, "env ") && equals != absl::string_view::npos) {
      input.environment[std::string(line.substr(4, equals - 4))] =
          std::string(line.substr(equals + 1));
    } else {
      input.args.emplace_back(line);
    }
  }
  return input;
}

void CheckSame(const LaunchPlan& a, const LaunchPlan& b) {
  FSDPRUN_CHECK(a.request == b.request && DescribePlan(a) == DescribePlan(b) &&
                    a.endpoint == b.endpoint && a.backend == b.backend &&
                    a.master_port == b.master_port && a.token_file == b.token_file &&
                    a.local_addr == b.local_addr && a.program == b.program,
                "equivalent inputs give different plans");
}

void CheckLimits(const LaunchPlan& plan) {
  FSDPRUN_CHECK(plan.min_nodes >= 1 && plan.min_nodes <= plan.max_nodes, "node count out of range");
  // Nodes with a daemon may count their own devices.
  FSDPRUN_CHECK(plan.nproc_per_node >= (plan.HasAgents() ? 0 : 1) && plan.nproc_per_node <= 4096,
                "worker count out of range");
  FSDPRUN_CHECK(plan.node_rank >= -1, "node rank out of range");
  FSDPRUN_CHECK(plan.join_timeout.count() > 0, "join timeout is zero");
  FSDPRUN_CHECK(plan.last_call_timeout.count() >= 0 && plan.shutdown_timeout.count() >= 0,
                "negative timeout");
  FSDPRUN_CHECK(plan.max_restarts >= 0, "negative restart budget");
  FSDPRUN_CHECK(!plan.node_lease.has_value() || plan.node_lease->count() >= 0, "negative lease");
  FSDPRUN_CHECK(
      plan.restart_backoff.count() >= 0 && plan.restart_backoff <= plan.max_restart_backoff,
      "back-off out of range");
  FSDPRUN_CHECK(plan.quarantine_after >= 0 && plan.quarantine_window.count() > 0,
                "quarantine out of range");
  FSDPRUN_CHECK(plan.watch.straggler_ratio >= 0 && plan.watch.warm_up.count() > 0 &&
                    plan.watch.hang_timeout.value_or(plan.watch.warm_up).count() > 0,
                "watch out of range");
  FSDPRUN_CHECK(!plan.program.empty() && !plan.program.front().empty(), "no program");
  FSDPRUN_CHECK(plan.rdzv_id.find('/') == std::string::npos, "run id is not a file name");
  const std::vector<std::string> command = WorkerCommand(plan, "python3", 1);
  FSDPRUN_CHECK(command.size() >= plan.program.size(), "argument lost");
}

/// The endpoint is equal after a round trip.
void CheckEndpoint(const LaunchPlan& plan) {
  if (plan.endpoint.host.empty()) {
    return;
  }
  const auto again = ParseHostPort(ToString(plan.endpoint), 1);
  FSDPRUN_CHECK(again.ok() && *again == plan.endpoint, "endpoint differs after a round trip");
}

/// torchrun's rule: --nproc-per-node is PET_NPROC_PER_NODE.
std::string VariableOf(const OptionSpec& option) {
  std::string name = absl::StrCat("PET_", absl::AsciiStrToUpper(option.name));
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

/// The same options as variables. An empty variable counts as unset, so empty values are left out.
void CheckEnvironment(const Input& input, const LaunchPlan& plan) {
  RawOptions options = OptionsOfArguments(input.program, input.args).value();
  Environment environment = input.environment;
  for (const OptionSpec& option : OptionTable()) {
    if (const RawValue* value = options.Find(option.name)) {
      if (value->text.empty() || !option.reads_variable) {
        return;
      }
      environment[VariableOf(option)] = value->text;
    }
  }
  std::vector<std::string> args = std::move(options.program);
  args.insert(args.begin(), "--");
  const auto again = ParseCommandLine(input.program, args, environment, kMachine);
  FSDPRUN_CHECK(again.ok(), "value accepted as an option but not as a variable");
  CheckSame(*again, plan);
}

/// The same options written with underscores and "=".
void CheckSpelling(const Input& input, const LaunchPlan& plan) {
  const RawOptions options = OptionsOfArguments(input.program, input.args).value();
  std::vector<std::string> args;
  for (const OptionSpec& option : OptionTable()) {
    if (const RawValue* value = options.Find(option.name)) {
      std::string name = option.name;
      std::replace(name.begin(), name.end(), '-', '_');
      args.push_back(option.takes_value() ? absl::StrCat("--", name, "=", value->text)
                                          : absl::StrCat("--", name));
    }
  }
  args.emplace_back("--");
  args.insert(args.end(), options.program.begin(), options.program.end());
  const auto spelled = ParseCommandLine(input.program, args, input.environment, kMachine);
  FSDPRUN_CHECK(spelled.ok(), "other spelling of the same options refused");
  CheckSame(*spelled, plan);
}

void Fuzz(std::string_view text) {
  const Input input = Split(text);
  const auto plan = ParseCommandLine(input.program, input.args, input.environment, kMachine);
  if (!plan.ok()) {
    FSDPRUN_CHECK((absl::IsInvalidArgument(plan.status()) || absl::IsOutOfRange(plan.status())) &&
                      !plan.status().message().empty(),
                  "wrong status code or empty message");
    return;
  }
  if (plan->request != Request::kRun && plan->request != Request::kDryRun) {
    return;
  }
  CheckLimits(*plan);
  CheckEndpoint(*plan);
  CheckEnvironment(input, *plan);
  CheckSpelling(input, *plan);
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
