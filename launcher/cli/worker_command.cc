#include "launcher/cli/worker_command.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kName = "local_rank";

bool ContinuesName(char c) { return absl::ascii_isalnum(c) || c == '_'; }

}  // namespace

std::string SubstituteLocalRank(absl::string_view argument, int local_rank) {
  std::string result;
  while (!argument.empty()) {
    const size_t dollar = argument.find('$');
    absl::StrAppend(&result, argument.substr(0, dollar));
    if (dollar == absl::string_view::npos) {
      break;
    }
    argument.remove_prefix(dollar + 1);
    if (absl::ConsumePrefix(&argument, "$")) {
      result.push_back('$');
    } else if (absl::ConsumePrefix(&argument, "{local_rank}")) {
      absl::StrAppend(&result, local_rank);
    } else if (absl::StartsWith(argument, kName) &&
               (argument.size() == kName.size() || !ContinuesName(argument[kName.size()]))) {
      argument.remove_prefix(kName.size());
      absl::StrAppend(&result, local_rank);
    } else {
      result.push_back('$');
    }
  }
  return result;
}

std::vector<std::string> WorkerCommand(const LaunchPlan& plan, absl::string_view python,
                                       int local_rank) {
  std::vector<std::string> command;
  if (plan.program_kind != ProgramKind::kExecutable) {
    command = {std::string(python), "-u"};
  }
  if (plan.program_kind == ProgramKind::kPythonModule) {
    command.push_back("-m");
  }
  // The first word is a path that was checked before the start; only arguments are templates.
  command.push_back(plan.program.front());
  for (size_t i = 1; i < plan.program.size(); ++i) {
    command.push_back(SubstituteLocalRank(plan.program[i], local_rank));
  }
  return command;
}

}  // namespace fsdprun
