#include "launcher/cli/worker_command.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text_template.h"

namespace fsdprun {

std::string SubstituteLocalRank(absl::string_view argument, int local_rank) {
  return SubstituteNames(argument, {{"local_rank", absl::StrCat(local_rank)}});
}

std::vector<std::string> WorkerCommand(const LaunchPlan& plan, absl::string_view python,
                                       int local_rank) {
  const bool is_executable = plan.program_kind == ProgramKind::kExecutable;
  std::vector<std::string> command;
  if (!is_executable && !python.empty()) {
    command = {std::string(python), "-u"};
  }
  if (plan.program_kind == ProgramKind::kPythonModule) {
    command.push_back("-m");
  }
  // As in torchrun, all that Python gets is a template, and the name of an executable is none.
  std::string program =
      is_executable ? plan.program.front() : SubstituteLocalRank(plan.program.front(), local_rank);
  if (!is_executable && python.empty() && !absl::StrContains(program, '/')) {
    program = absl::StrCat("./", program);  // A script is a file, and no command on PATH.
  }
  command.push_back(std::move(program));
  if (plan.passes_local_rank) {
    command.push_back(absl::StrCat("--local-rank=", local_rank));
  }
  for (size_t i = 1; i < plan.program.size(); ++i) {
    command.push_back(SubstituteLocalRank(plan.program[i], local_rank));
  }
  return command;
}

}  // namespace fsdprun
