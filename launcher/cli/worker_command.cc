#include "launcher/cli/worker_command.h"

#include "absl/strings/str_cat.h"
#include "base/text_template.h"

namespace fsdprun {

std::string SubstituteLocalRank(absl::string_view argument, int local_rank) {
  return SubstituteNames(argument, {{"local_rank", absl::StrCat(local_rank)}});
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
