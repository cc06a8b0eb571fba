#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

void CheckTracing(const ProcessFacts& facts, Findings* findings) {
  const int scope = facts.ptrace_scope.value_or(0);
  if (scope == 0 || (facts.may_trace && scope < 3)) {
    findings->Ok("ptrace", "stacks of running workers can be looked at");
    return;
  }
  findings->Note(
      "ptrace",
      {absl::StrCat("kernel.yama.ptrace_scope is ", scope),
       "py-spy and gdb cannot look at the stacks of a worker that hangs",
       scope == 3 ? "it can only be changed at the next boot"
                  : "`sysctl kernel.yama.ptrace_scope=0`, or run them as root; docker run "
                    "--cap-add=SYS_PTRACE"});
}

}  // namespace

std::vector<Finding> CheckProcesses(const ProcessFacts& facts) {
  Findings findings(CheckGroup::kProcesses);
  if (facts.has_proc) {
    findings.Ok("proc", "/proc is mounted");
  } else {
    findings.Problem("proc", {"/proc is not mounted, or cannot be read",
                              "fsdprun finds what workers have left behind there, and itself",
                              "`mount -t proc proc /proc`"});
  }
  if (facts.pidfd_error == 0) {
    findings.Ok("pidfd", "processes can be waited for by descriptors");
  } else {
    findings.Problem("pidfd", {absl::StrCat("pidfd_open: ", ErrorText(facts.pidfd_error)),
                               "the keeper waits for workers by such descriptors",
                               "Linux 5.3 or later, and a seccomp profile that allows pidfd_open, "
                               "pidfd_send_signal and clone with CLONE_PIDFD"});
  }
  if (facts.subreaper_error == 0) {
    findings.Ok("subreaper", "orphans can be adopted");
  } else {
    findings.Problem("subreaper",
                     {absl::StrCat("PR_SET_CHILD_SUBREAPER: ", ErrorText(facts.subreaper_error)),
                      "what workers have started cannot be ended with them",
                      "allow prctl in the container's seccomp profile"});
  }
  CheckTracing(facts, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
