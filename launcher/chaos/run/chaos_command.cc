#include "launcher/chaos/run/chaos_command.h"

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "launcher/chaos/plan/chaos_options.h"
#include "launcher/chaos/plan/wrapped_job.h"
#include "launcher/chaos/run/chaos_run.h"
#include "launcher/cli/help_text.h"
#include "launcher/cli/man_page.h"
#include "launcher/run/machine.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

constexpr char kCommandWord[] = "chaos";
constexpr int kUnreadableCode = 2;
constexpr int kFailedCode = 1;
/// What a user can type again.
constexpr uint64_t kSeedMax = 1'000'000'000;

int FailChaos(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", ProgramName(CliProgram::kChaos),
               std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? kUnreadableCode : kFailedCode;
}

absl::StatusOr<std::optional<std::string>> ReadScheduleFile(const std::string& path) {
  if (path.empty()) {
    return std::nullopt;
  }
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), {}};
  if (!file.is_open() || file.bad()) {
    return absl::OutOfRangeError(absl::StrCat("--schedule: cannot read ", path));
  }
  return text;
}

/// Everything about the run that follows from the command line and the schedule's file.
absl::StatusOr<chaos::ChaosRun::Setting> MakeSetting(const chaos::ChaosOptions& options,
                                                     const Environment& environment) {
  chaos::ChaosRun::Setting setting{.options = options};
  std::random_device random;
  // A schedule without a seed is the same each time.
  const uint64_t seed = options.seed.value_or(options.schedule.empty() ? random() % kSeedMax : 0);
  chaos::Form form = chaos::Form::kAttached;
  if (!options.command.empty()) {
    ASSIGN_OR_RETURN(setting.wrapped, chaos::ReadWrappedJob(options.command, options.nodes,
                                                            absl::StrCat("chaos-", ::getpid(), "-",
                                                                         random() % kSeedMax),
                                                            environment));
    form = setting.wrapped->form;
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> schedule, ReadScheduleFile(options.schedule));
  ASSIGN_OR_RETURN(setting.plan, chaos::PlanFaults(options, form, schedule, seed));
  if (!schedule.has_value() || options.seed.has_value()) {
    setting.seed = seed;
  }
  return setting;
}

void ShowPlan(const chaos::ChaosRun::Setting& setting) {
  if (setting.seed.has_value()) {
    std::printf("seed: %llu\n", static_cast<unsigned long long>(*setting.seed));
  }
  if (setting.wrapped.has_value() && setting.wrapped->form == chaos::Form::kNodes) {
    const chaos::WrappedJob& job = *setting.wrapped;
    std::printf("coordinator: %s\n%d launchers: %s\n",
                absl::StrJoin(chaos::CoordinatorCommand(job, 0, "DIR"), " ").c_str(), job.nodes,
                absl::StrJoin(chaos::NodeCommand(job, 0), " ").c_str());
  } else if (setting.wrapped.has_value()) {
    std::printf("job: %s\n", absl::StrJoin(setting.wrapped->command, " ").c_str());
  }
  std::fputs(chaos::TextOf(setting.plan).c_str(), stdout);
}

void PrepareChaosProcess() {
  ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  ::signal(SIGCHLD, SIG_DFL);
}

/// What the job writes to standard output must not get into the report. Returns where that goes.
int KeepOutputForReport() {
  const int report = ::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  return report;
}

}  // namespace

bool IsChaosCommand(int argc, char** argv) {
  return argc >= 2 && argv[1] == std::string(kCommandWord);
}

int RunChaosCommand(int argc, char** argv, char** environ_pointer) {
  const Environment environment = ReadEnvironment(environ_pointer);
  const absl::StatusOr<chaos::ChaosOptions> options =
      chaos::ReadChaosOptions(std::vector<std::string>(argv + 2, argv + argc));
  if (!options.ok()) {
    return FailChaos(options.status());
  }
  switch (options->request) {
    case Request::kHelp:
      std::fputs(HelpText(CliProgram::kChaos).c_str(), stdout);
      return 0;
    case Request::kManPage:
      std::fputs(ManPage(CliProgram::kChaos).c_str(), stdout);
      return 0;
    case Request::kVersion:
      std::printf("%s %s\n", ProgramName(CliProgram::kChaos), kRelease);
      return 0;
    default:
      break;
  }
  absl::StatusOr<chaos::ChaosRun::Setting> setting = MakeSetting(*options, environment);
  if (!setting.ok()) {
    return FailChaos(setting.status());
  }
  if (options->request == Request::kDryRun) {
    ShowPlan(*setting);
    return 0;
  }
  PrepareChaosProcess();
  if (options->is_json) {
    setting->report_fd = KeepOutputForReport();
  }
  return chaos::ChaosRun(*std::move(setting), environment).Run();
}

}  // namespace fsdprun
