#include "launcher/run/session_run.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/daemon/session_folder.h"
#include "launcher/daemon/session_plan.h"
#include "launcher/run/hosts_launcher.h"
#include "launcher/run/launcher.h"
#include "launcher/run/machine.h"

namespace fsdprun {
namespace {

constexpr int kSessionFailed = 1;

absl::StatusOr<int> RunPart(const std::string& folder, const Environment& own_environment) {
  ASSIGN_OR_RETURN(const v1::SessionSpec spec, ReadSessionSpec(folder));
  if (::chdir(spec.folder().c_str()) != 0) {
    return absl::NotFoundError(absl::StrCat(spec.node_name(), ": cannot enter ", spec.folder(),
                                            ", where the launcher was started: ", ErrorText(errno),
                                            "; start it in a folder that all nodes have"));
  }
  Environment environment = EnvironmentAtNode(own_environment, TraveledEnvironment(spec));
  environment["PWD"] = spec.folder();
  const MachineFacts machine = DetectMachine(environment);
  ASSIGN_OR_RETURN(LaunchPlan plan, spec.has_head() ? PlanOfHead(spec, environment, machine)
                                                    : PlanOfSession(spec, environment, machine));
  plan.keeper_socket = KeeperSocketOf(folder);
  environment["FSDPRUN_TOKEN"] = spec.token();
  if (const auto level = environment.find("LOGLEVEL"); level != environment.end()) {
    SetLogLevel(ParseLogLevel(level->second));
  }
  if (spec.has_head()) {
    return HostsLauncher(plan, environment, {spec.arguments().begin(), spec.arguments().end()},
                         NoteSessionStart)
        .Run();
  }
  return Launcher(CliProgram::kFsdprun, plan, environment).Run();
}

void ComplainOfSession(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", ProgramName(CliProgram::kFsdprun),
               std::string(status.message()).c_str());
}

}  // namespace

int RunSession(const std::string& folder, const Environment& own_environment) {
  if (const absl::Status entered = EnterSessionFolder(folder); !entered.ok()) {
    ComplainOfSession(entered);
    return kSessionFailed;
  }
  const absl::StatusOr<int> code = RunPart(folder, own_environment);
  if (!code.ok()) {
    ComplainOfSession(code.status());
  }
  if (const absl::Status written = WriteSessionExit(folder, code.value_or(kSessionFailed));
      !written.ok()) {
    ComplainOfSession(written);
  }
  return code.value_or(kSessionFailed);
}

}  // namespace fsdprun
