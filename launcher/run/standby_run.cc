#include "launcher/run/standby_run.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "launcher/cli/command_line.h"
#include "launcher/run/coordinator_run.h"
#include "launcher/run/machine.h"
#include "launcher/standby/handover.h"
#include "launcher/standby/standby.h"

namespace fsdprun {
namespace {

/// Of a launcher that is killed by a signal that was meant for both, say.
class SignalsLater {
 public:
  SignalsLater() {
    sigset_t all;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsLater() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsLater(const SignalsLater&) = delete;
  SignalsLater& operator=(const SignalsLater&) = delete;

 private:
  sigset_t before_;
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

bool IsAllOver(const Inheritance& inheritance) {
  return !inheritance.record.has_value() ||
         (inheritance.record->is_over && inheritance.record->nodes.empty());
}

absl::StatusOr<int> GoOn(Inheritance inheritance, const std::vector<std::string>& arguments,
                         const Environment& environment) {
  ASSIGN_OR_RETURN(LaunchPlan plan, ParseCommandLine(CliProgram::kFsdprun, arguments, environment,
                                                     DetectMachine(environment)));
  plan.is_coordinator = true;
  plan.is_host = true;
  plan.rdzv_id = inheritance.handover.run_id;
  plan.rdzv_id_is_random = false;
  plan.warnings.clear();  // The launcher has said them.
  return CoordinatorRun(plan, environment, std::move(inheritance)).Run();
}

absl::StatusOr<int> Run(const std::vector<std::string>& arguments, const Environment& environment) {
  RETURN_IF_ERROR(CheckSocket());
  const UniqueFd socket(kStandbySocket);
  absl::StatusOr<Inheritance> inheritance = absl::UnknownError("not read");
  {
    const SignalsLater signals_later;
    inheritance = ReadInheritance(socket.get());
  }
  RETURN_IF_ERROR(inheritance.status());
  return IsAllOver(*inheritance) ? absl::StatusOr<int>(0)
                                 : GoOn(*std::move(inheritance), arguments, environment);
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
