#include "launcher/run/launch.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "agent/local/store_process.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/accelerate_options.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/completions.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/host_list.h"
#include "launcher/cli/man_page.h"
#include "launcher/cli/program_texts.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/listener.h"
#include "launcher/run/attach_run.h"
#include "launcher/run/coordinator_run.h"
#include "launcher/run/daemon_run.h"
#include "launcher/run/hosts_launcher.h"
#include "launcher/run/launcher.h"
#include "launcher/run/machine.h"
#include "launcher/run/session_run.h"
#include "launcher/run/slurm_launcher.h"
#include "launcher/run/ssh_launcher.h"
#include "launcher/run/ssh_node.h"
#include "launcher/run/standby_run.h"
#include "launcher/run/worker_cpus.h"
#include "launcher/slurm/slurm_plan.h"
#include "launcher/ssh/ssh_command.h"
#include "launcher/standby/standby.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

// See Note [Usage errors and value errors].
constexpr int kUsageError = 2;
constexpr int kValueError = 1;

/// What a daemon starts its sessions with; no option of users.
constexpr absl::string_view kSessionOption = "--session";
constexpr absl::string_view kStoreOption = "--store";

// This command line, for other nodes: a path is made absolute, a name is looked up there again.
std::vector<std::string> CommandForNodes(const char* name, const std::vector<std::string>& args) {
  std::vector<std::string> command{name};
  command.insert(command.end(), args.begin(), args.end());
  if (command.front().find('/') != std::string::npos) {
    command.front() = std::filesystem::absolute(command.front()).lexically_normal().string();
  }
  return command;
}

void TakeLogLevel(const Environment& environment) {
  if (const auto level = environment.find("LOGLEVEL"); level != environment.end()) {
    SetLogLevel(ParseLogLevel(level->second));
  }
}

// Runs a job, or one node of it, from start to end, and prints everything an operator needs.
int Launch(CliProgram program, const LaunchPlan& plan, const Environment& environment,
           const SlurmPlace& slurm, std::vector<std::string> command) {
  TakeLogLevel(environment);
  if (plan.is_coordinator) {
    return CoordinatorRun(plan, environment).Run();
  }
  if (plan.daemon.has_value()) {
    return DaemonRun(plan, environment).Run();
  }
  if (plan.detaches || !plan.attached_session.empty()) {
    return AttachRun(plan, environment, {command.begin() + 1, command.end()}).Run();
  }
  if (plan.ssh.has_value()) {
    return SshLauncher(plan, environment, {command.begin() + 1, command.end()}).Run();
  }
  if (plan.HasAgents()) {
    return HostsLauncher(plan, environment, {command.begin() + 1, command.end()}).Run();
  }
  if (slurm.role == SlurmRole::kShell) {
    return SlurmLauncher(plan, environment, slurm.allocation, std::move(command),
                         SlurmLauncher::UsualMeans())
        .Run();
  }
  return Launcher(program, plan, environment, {command.begin() + 1, command.end()}).Run();
}

constexpr size_t kRunIdBytes = 4;

// The file is read here, once for all nodes, and jobs with no name of their own get one: daemons
// and tokens tell them apart by it.
absl::Status FindAgents(LaunchPlan* plan) {
  if (!plan->host_file.empty()) {
    std::ifstream file(plan->host_file);
    std::ostringstream text;
    if (file.peek() != std::ifstream::traits_type::eof()) {
      text << file.rdbuf();
    }
    if (!file.is_open() || file.bad() || text.bad()) {
      return absl::OutOfRangeError(
          absl::StrCat("--hostfile: cannot read ", plan->host_file, ": ", ErrorText(errno)));
    }
    ASSIGN_OR_RETURN(std::vector<AgentHost> hosts,
                     ParseHostFile(plan->host_file, text.str(),
                                   plan->ssh.has_value() ? kDefaultSshPort : kDefaultDaemonPort));
    RETURN_IF_ERROR(TakeHosts(std::move(hosts), plan));
  }
  if (plan->rdzv_id.empty() || plan->rdzv_id == "none") {
    plan->rdzv_id = absl::StrCat("agents-", RandomHex(kRunIdBytes));
    plan->rdzv_id_is_random = false;
  }
  return absl::OkStatus();
}

// Makes the plan that of the place where it is given.
absl::StatusOr<SlurmPlace> FindPlace(const Environment& environment, LaunchPlan* plan) {
  const bool runs = plan->request == Request::kRun || plan->request == Request::kDryRun;
  if (runs && plan->HasAgents()) {
    RETURN_IF_ERROR(FindAgents(plan));
  } else if (runs && !plan->is_coordinator && !plan->daemon.has_value() &&
             plan->attached_session.empty()) {
    return FitToSlurm(environment, plan);
  }
  return SlurmPlace();
}

void PrepareProcess() {
  // gRPC's own log lines name its source files; we report what matters ourselves. Set before any
  // thread exists, and not for the workers, which get the environment read in RunProgram().
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  // An ignored SIGCHLD is inherited across exec; the kernel would then reap the keeper and discard
  // its exit status.
  ::signal(SIGCHLD, SIG_DFL);
}

void PrintError(CliProgram program, const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", ProgramName(program), std::string(status.message()).c_str());
}

// See Note [A configuration of accelerate]. Returns the variables that it has set.
absl::StatusOr<Environment> TakeAccelerateConfig(CliProgram program, std::vector<std::string>* args,
                                                 Environment* environment) {
  const absl::StatusOr<std::string> file = AccelerateFile(program, *args);
  if (!file.ok() || file->empty()) {
    return Environment();  // What is wrong with the command line is told with the rest of it.
  }
  const AccelerateSurroundings surroundings{
      .physical_cores = CountPhysicalCores(""),
      .is_port_free = [](uint16_t port) { return BindListeners({"127.0.0.1"}, port).ok(); }};
  std::optional<AccelerateConfig> config;
  try {
    config.emplace(ReadAccelerateConfig(*file));
  } catch (const ConfigError& error) {
    return absl::InvalidArgumentError(absl::StrCat("--accelerate-config: ", error.what()));
  }
  ASSIGN_OR_RETURN(AccelerateLaunch launch,
                   PlanAccelerate(program, *args, *config, *environment, surroundings));
  for (const std::string& warning : launch.warnings) {
    std::fprintf(stderr, "%s: warning: %s\n", ProgramName(program), warning.c_str());
  }
  args->insert(args->begin(), launch.options.begin(), launch.options.end());
  for (const auto& [name, value] : launch.variables) {
    (*environment)[name] = value;
  }
  return std::move(launch.variables);
}

// Also what the start would find wrong with this machine's devices, and what it would find the
// program to be.
int DescribeRun(CliProgram program, const LaunchPlan& plan, const Environment& environment,
                const SlurmPlace& slurm, const std::vector<std::string>& command) {
  if (plan.is_coordinator || plan.daemon.has_value() || plan.HasAgents() ||
      !plan.attached_session.empty()) {
    std::fputs(DescribePlan(plan).c_str(), stdout);
    return 0;
  }
  const auto worker_cpus = WorkerCpus(plan, environment);
  absl::Status status = CheckVisibleDevices(plan, environment);
  status.Update(worker_cpus.status());
  if (!status.ok()) {
    PrintError(program, status);
    return kValueError;
  }
  LaunchPlan started = plan;
  started.program_kind = KindStarted(plan);
  std::fputs(DescribePlan(started).c_str(), stdout);
  std::fputs(DescribeWorkerCpus(*worker_cpus).c_str(), stdout);
  if (slurm.role == SlurmRole::kShell) {
    std::printf("step: %s\n",
                absl::StrJoin(SrunCommand(slurm.allocation, plan, command), " ").c_str());
  }
  return 0;
}

}  // namespace

int RunProgram(CliProgram program, int argc, char** argv, char** environ_pointer) {
  Environment environment = ReadEnvironment(environ_pointer);
  if (program == CliProgram::kFsdpAgent && argc == 3 && argv[1] == kSessionOption) {
    PrepareProcess();
    return RunSession(argv[2], environment);
  }
  if (program == CliProgram::kFsdprun && argc >= 2 &&
      argv[1] == absl::string_view(kStandbyOption)) {
    PrepareProcess();
    TakeLogLevel(environment);
    return RunStandby({argv + 2, argv + argc}, environment);
  }
  if (program == CliProgram::kFsdprun && argc == 2 && argv[1] == kSshNodeOption) {
    PrepareProcess();
    return RunSshNode(environment);
  }
  if (program == CliProgram::kFsdpAgent && argc == 3 && argv[1] == kStoreOption) {
    PrepareProcess();
    return RunStore(argv[2]);
  }
  std::vector<std::string> args(argv + 1, argv + argc);
  const absl::StatusOr<Environment> accelerate = TakeAccelerateConfig(program, &args, &environment);
  if (!accelerate.ok()) {
    PrintError(program, accelerate.status());
    return kUsageError;
  }
  absl::StatusOr<LaunchPlan> plan =
      ParseCommandLine(program, args, environment, DetectMachine(environment));
  if (!plan.ok()) {
    PrintError(program, plan.status());
    // A service manager must not start an agent again that was given wrong values.
    const bool is_agent = program == CliProgram::kFsdpAgent;
    return is_agent || absl::IsInvalidArgument(plan.status()) ? kUsageError : kValueError;
  }
  AlsoForward(*accelerate, &plan->forwarded_variables);
  const absl::StatusOr<SlurmPlace> slurm = FindPlace(environment, &*plan);
  if (!slurm.ok()) {
    if (!IsToldByFirstTask(environment)) {
      PrintError(program, slurm.status());
    }
    return kValueError;
  }
  PrepareProcess();
  switch (plan->request) {
    case Request::kHelp:
      std::fputs(HelpText(program).c_str(), stdout);
      return 0;
    case Request::kManPage:
      std::fputs(ManPage(program).c_str(), stdout);
      return 0;
    case Request::kCompletion:
      std::fputs(CompletionScript(program, plan->completion).c_str(), stdout);
      return 0;
    case Request::kVersion:
      std::printf("%s %s\n", ProgramName(program), kRelease);
      return 0;
    case Request::kDryRun:
      return DescribeRun(program, *plan, environment, *slurm, CommandForNodes(argv[0], args));
    case Request::kRun:
      break;
  }
  return Launch(program, *plan, environment, *slurm, CommandForNodes(argv[0], args));
}

}  // namespace fsdprun
