#include "launcher/run/standby_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/coordinator_run.h"
#include "launcher/run/machine.h"
#include "launcher/run/tls_setup.h"
#include "launcher/standby/handover.h"
#include "launcher/standby/standby.h"

namespace fsdprun {
namespace {

bool IsOfAFault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGTRAP || signal == SIGABRT;
}

/// What is meant for the launcher, whose words a standby's command line has, too, is none of its
/// business while it waits; nor may it be kept for later.
class SignalsIgnored {
 public:
  SignalsIgnored() { SetAll(SIG_IGN); }
  ~SignalsIgnored() { SetAll(SIG_DFL); }
  SignalsIgnored(const SignalsIgnored&) = delete;
  SignalsIgnored& operator=(const SignalsIgnored&) = delete;

 private:
  static void SetAll(sighandler_t handler) {
    for (int signal = 1; signal <= SIGRTMAX; ++signal) {
      if (!IsOfAFault(signal) && signal != SIGCHLD) {
        ::signal(signal, handler);  // Not SIGKILL and SIGSTOP, whatever this says.
      }
    }
  }
};

absl::Status CheckSocket() {
  int type = 0;
  socklen_t size = sizeof(type);
  if (::getsockopt(kStandbySocket, SOL_SOCKET, SO_DOMAIN, &type, &size) != 0 || type != AF_UNIX ||
      ::fcntl(kStandbySocket, F_SETFD, FD_CLOEXEC) != 0) {
    return absl::InvalidArgumentError("--standby is for launchers, and not for use by hand");
  }
  return absl::OkStatus();
}

absl::StatusOr<LaunchPlan> PlanOf(const std::vector<std::string>& arguments,
                                  const Environment& environment) {
  ASSIGN_OR_RETURN(LaunchPlan plan, ParseCommandLine(CliProgram::kFsdprun, arguments, environment,
                                                     DetectMachine(environment)));
  plan.is_coordinator = true;
  plan.warnings.clear();  // The launcher has said them.
  return plan;
}

absl::StatusOr<int> Run(const std::vector<std::string>& arguments, const Environment& environment) {
  RETURN_IF_ERROR(CheckSocket());
  ::prctl(PR_SET_NAME, ProgramName(CliProgram::kFsdprun));  // Else "exe", by which it was started.
  const UniqueFd socket(kStandbySocket);
  absl::StatusOr<Inheritance> inheritance = absl::UnknownError("not read");
  LaunchPlan plan;
  std::shared_ptr<const Tls> tls;
  {
    const SignalsIgnored signals_ignored;
    // What the launcher's words name may be gone by the time that it dies.
    ASSIGN_OR_RETURN(plan, PlanOf(arguments, environment));
    ASSIGN_OR_RETURN(tls, MakeTls(plan));
    inheritance = ReadInheritance(socket.get());
  }
  RETURN_IF_ERROR(inheritance.status());
  if (!inheritance->record.has_value()) {
    return absl::UnavailableError("the launcher has died before it had told of the job");
  }
  if (inheritance->record->is_over && inheritance->record->nodes.empty()) {
    return 0;
  }
  plan.rdzv_id = inheritance->handover.run_id;
  plan.rdzv_id_is_random = false;
  return CoordinatorRun(plan, environment, *std::move(inheritance), std::move(tls)).Run();
}

}  // namespace

int RunStandby(const std::vector<std::string>& arguments, const Environment& environment) {
  const absl::StatusOr<int> code = Run(arguments, environment);
  if (!code.ok()) {
    std::fprintf(stderr, "fsdprun: the standby of a job's coordinator: %s\n",
                 std::string(code.status().message()).c_str());
  }
  return code.value_or(1);
}

}  // namespace fsdprun
