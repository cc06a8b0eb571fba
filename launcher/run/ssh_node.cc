#include "launcher/run/ssh_node.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <string>
#include <system_error>
#include <thread>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/signals_blocked.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "fsdprun/v1/daemon.pb.h"
#include "launcher/cli/forwarded_environment.h"
#include "launcher/daemon/session_plan.h"
#include "launcher/run/launcher.h"
#include "launcher/run/machine.h"
#include "launcher/ssh/node_hello.h"
#include "proto/cluster/build_info.h"

namespace fsdprun {
namespace {

constexpr int kSshNodeFailed = 1;
constexpr size_t kLongestSizeLine = 20;
/// Longer than an agent needs to find its coordinator gone and to abort its workers.
constexpr std::chrono::milliseconds kEndMargin{1'000};

// The one descriptor of the input, and /dev/null in its place: workers must not read it.
absl::StatusOr<UniqueFd> TakeInput() {
  UniqueFd input(::fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  const UniqueFd nothing(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  if (!input.valid() || !nothing.valid() || ::dup2(nothing.get(), STDIN_FILENO) < 0) {
    return absl::InternalError(absl::StrCat("standard input: ", ErrorText(errno)));
  }
  return input;
}

// False at its end.
bool ReadExactly(int fd, char* to, size_t size) {
  while (size > 0) {
    const ssize_t n = ::read(fd, to, size);
    if (n < 0 && errno == EINTR) {
      continue;
    }
    if (n <= 0) {
      return false;
    }
    to += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

absl::StatusOr<v1::SessionSpec> ReadOrder(int fd) {
  std::string line;
  for (char c = 0; line.size() < kLongestSizeLine && ReadExactly(fd, &c, 1) && c != '\n';) {
    line.push_back(c);
  }
  const std::optional<size_t> size = ReadOrderSize(line);
  if (!size.has_value()) {
    return absl::InvalidArgumentError(
        "no launcher has said what to do; fsdprun --ssh starts this by itself");
  }
  std::string bytes(*size, '\0');
  v1::SessionSpec spec;
  if (!ReadExactly(fd, bytes.data(), bytes.size()) || !spec.ParseFromString(bytes)) {
    return absl::InvalidArgumentError("the launcher's order has not come whole");
  }
  return spec;
}

// The input of a node's part ends with its launcher, or with the connection. The agent may have
// noticed, and has time to end its workers as it does when it loses its coordinator; then its
// keeper does, once this process is gone. All on a thread that needs nothing else of this process.
void EndWithInput(UniqueFd input, std::chrono::milliseconds pause) {
  const SignalsBlocked signals_blocked;
  std::thread([fd = input.release(), pause] {
    char c = 0;
    while (ReadExactly(fd, &c, 1)) {
    }
    ::poll(nullptr, 0, static_cast<int>(pause.count()));
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

absl::StatusOr<int> RunNode(const Environment& own_environment) {
  ASSIGN_OR_RETURN(UniqueFd input, TakeInput());
  for (std::FILE* stream : {stdout, stderr}) {
    std::fputs(NodeHello(BuildInfo()).c_str(), stream);
    std::fflush(stream);
  }
  ASSIGN_OR_RETURN(const v1::SessionSpec spec, ReadOrder(input.get()));
  if (::chdir(spec.folder().c_str()) != 0) {
    return absl::NotFoundError(absl::StrCat(spec.node_name(), ": cannot enter ", spec.folder(),
                                            ", where the launcher was started: ", ErrorText(errno),
                                            "; start it in a folder that all nodes have"));
  }
  Environment environment = EnvironmentAtNode(own_environment, TraveledEnvironment(spec));
  environment["PWD"] = spec.folder();
  ASSIGN_OR_RETURN(LaunchPlan plan, PlanOfSession(spec, environment, DetectMachine(environment)));
  plan.ssh.reset();
  environment["FSDPRUN_TOKEN"] = spec.token();
  if (const auto level = environment.find("LOGLEVEL"); level != environment.end()) {
    SetLogLevel(ParseLogLevel(level->second));
  }
  EndWithInput(std::move(input), plan.abort_timeout + kEndMargin);
  return Launcher(CliProgram::kFsdprun, plan, environment).Run();
}

}  // namespace

int RunSshNode(const Environment& own_environment) {
  const absl::StatusOr<int> code = RunNode(own_environment);
  if (!code.ok()) {
    std::fprintf(stderr, "%s: %s\n", ProgramName(CliProgram::kFsdprun),
                 std::string(code.status().message()).c_str());
  }
  return code.value_or(kSshNodeFailed);
}

}  // namespace fsdprun
