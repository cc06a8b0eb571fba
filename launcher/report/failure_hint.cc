#include "launcher/report/failure_hint.h"

#include <algorithm>
#include <csignal>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "proto/worker_contract.h"

namespace fsdprun {
namespace {

struct TextHint {
  const char* pattern;
  const char* hint;
};

constexpr char kPeerHint[] =
    "another worker went away first; look at the earliest error in the logs of all nodes";

// The first pattern found in the worker's error message, traceback or last lines wins; the most
// specific come first.
constexpr TextHint kTextHints[] = {
    {"CUDA out of memory",
     "the GPU is full: lower the micro batch size or sequence length, or shard over more workers"},
    {"torch.OutOfMemoryError",
     "the GPU is full: lower the micro batch size or sequence length, or shard over more workers"},
    {"std::bad_alloc",
     "memory ran out: use fewer workers per node or a smaller model, batch or data buffer"},
    {"MemoryError",
     "memory ran out: use fewer workers per node or a smaller model, batch or data buffer"},
    {"Cannot allocate memory",
     "memory ran out: use fewer workers per node or a smaller model, batch or data buffer"},
    {"No space left on device",
     "the disk is full: free space or point checkpoints, logs and TMPDIR elsewhere"},
    {"ModuleNotFoundError",
     "install the module for this Python (PYTHON_EXEC chooses another interpreter), or set "
     "PYTHONPATH"},
    {"ImportError",
     "install the module for this Python (PYTHON_EXEC chooses another interpreter), or set "
     "PYTHONPATH"},
    {"Address already in use",
     "another process holds the port: end it, or choose another --master-port"},
    {"EADDRINUSE", "another process holds the port: end it, or choose another --master-port"},
    {"error while loading shared libraries",
     "a library is not found: set LD_LIBRARY_PATH or reinstall the program"},
    {"Connection closed by peer", kPeerHint},
    {"Connection reset by peer", kPeerHint},
    {"NCCL error",
     "run again with NCCL_DEBUG=INFO to see which rank and which network interface failed"},
    {"Permission denied", "check the owner and mode of the path named above"},
    {"SyntaxError", "correct the script; no worker could start running it"},
};

/// Where a core dump goes depends on the kernel's setting on the worker's node.
constexpr char kCoreHint[] =
    "open the core dump with gdb: /proc/sys/kernel/core_pattern on that host says where it is "
    "(relative to the worker's directory; `coredumpctl` where systemd takes it)";
constexpr char kNoCoreHint[] =
    "run again with `ulimit -c unlimited` (or PYTHONFAULTHANDLER=1 for Python) to see where";

std::string SignalHint(const WorkerExit& worker) {
  switch (worker.signal) {
    case SIGKILL:
      return "nobody in this job sent SIGKILL, so most likely the kernel's out-of-memory killer "
             "did: look for it with "
             "`dmesg | grep -i 'killed process'`, then use less memory or fewer workers per node";
    case SIGSEGV:
    case SIGBUS:
    case SIGILL:
    case SIGFPE:
      return absl::StrCat("native code crashed: ", worker.dumped_core ? kCoreHint : kNoCoreHint,
                          "; SIGBUS can also mean that /dev/shm is full");
    case SIGABRT:
      return absl::StrCat(
          "the program aborted itself (failed assertion, uncaught exception or watchdog): its last "
          "lines say why",
          worker.dumped_core ? absl::StrCat("; or ", kCoreHint) : "");
    case SIGTERM:
    case SIGINT:
      return "the signal was sent from outside this job: a batch system at its time limit, or an "
             "operator";
    default:
      return "";
  }
}

/// A client of c10d's store has given up: "The client socket has timed out after 600000ms while
/// trying to connect to (node0, 29501)". All workers are clients of the launcher's store, also
/// those that meant to have one of their own.
std::string OwnStoreHint(const std::string& text, const StoreEndpoint& store) {
  constexpr char kTimedOut[] = "client socket has timed out";
  constexpr char kTarget[] = "connect to (";
  const size_t begin = text.find(kTarget, std::min(text.find(kTimedOut), text.size()));
  const size_t end = text.find(')', std::min(begin, text.size()));
  if (end == std::string::npos) {
    return "";
  }
  const std::string target =
      text.substr(begin + std::strlen(kTarget), end - begin - std::strlen(kTarget));
  int port = 0;
  const size_t comma = target.rfind(", ");
  if (comma == std::string::npos || !absl::SimpleAtoi(target.substr(comma + 2), &port) ||
      port == store.port) {
    return "";
  }
  return absl::StrCat(
      "the script has a tcp:// store of its own at (", target, "), not at MASTER_PORT ", store.port,
      ", and nobody serves it, because workers are clients of the launcher's store: use "
      "init_method='env://', or set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 and --standalone or "
      "--rdzv-backend=c10d, with which rank 0 serves a store");
}

std::string WorkerHint(const WorkerExit& worker, const StoreEndpoint& store) {
  if (absl::StartsWith(worker.error_message, contract::kWatchdogError)) {
    return "the worker did not leave the timed section in time: its log says what it was doing "
           "there; PYTHONFAULTHANDLER=1 and a timer with signal=SIGABRT show its stacks";
  }
  if (worker.signal == SIGKILL) {
    return SignalHint(worker);  // SIGKILL leaves no time to report: any error text is older.
  }
  const std::string text = absl::StrCat(worker.error_message, "\n", worker.traceback, "\n",
                                        absl::StrJoin(worker.stderr_tail, "\n"));
  if (std::string hint = OwnStoreHint(text, store); !hint.empty()) {
    return hint;
  }
  for (const auto& [pattern, hint] : kTextHints) {
    if (absl::StrContains(text, pattern)) {
      return hint;
    }
  }
  if (worker.signal != 0) {
    return SignalHint(worker);
  }
  if (worker.exit_code == contract::kExitPeerLost) {
    return kPeerHint;
  }
  if (worker.exit_code == contract::kExitConfig) {
    return "the worker reported a configuration that can never work, so it was not restarted: "
           "correct what it names";
  }
  return "";
}

}  // namespace

std::string SignalName(int signal) {
  const char* abbreviation = ::sigabbrev_np(signal);
  return abbreviation != nullptr ? absl::StrCat("SIG", abbreviation)
                                 : absl::StrCat("signal ", signal);
}

std::string FailureHint(const Failure& failure, const StoreEndpoint& store) {
  switch (failure.kind) {
    case CauseKind::kWorkerFailed:
      return failure.worker.has_value() ? WorkerHint(*failure.worker, store) : "";
    case CauseKind::kNodeLost:
      return "check that the node is up and reachable and start fsdprun there again; with "
             "--max-restarts above 0 the job waits for it";
    case CauseKind::kKeeperDied:
      return "fsdp-keeper was killed, most likely by the out-of-memory killer or an operator: see "
             "`dmesg`";
    case CauseKind::kPrepareFailed:
      return "check space and permissions of the log directory and that the node's address is "
             "right (--local-addr)";
    case CauseKind::kSpawnFailed:
      return "check that the program exists on that node and may be executed, and the limits of "
             "`ulimit -u` and `-n`";
    case CauseKind::kNodeWedged:
      return "a process hangs in the kernel, usually on a dead file system or device: look for "
             "state D in `ps`";
    case CauseKind::kNodeStuck:
      return "the node is overloaded or its disk hangs: look at its load and at `dmesg`";
    case CauseKind::kJoinTimeout:
      return "start fsdprun on the missing nodes with the same --rdzv-id and endpoint, and check "
             "firewalls; --rdzv-conf join_timeout=SECONDS waits longer";
    case CauseKind::kCannotStart:
      return "put the program on that node under the same path, or start the job with a path that "
             "all nodes have";
    case CauseKind::kWorkerHung:
      return "read the stacks in hang-N.txt beside events.jsonl (--log-dir), or have fsdpctl "
             "stacks "
             "read them next time; --hang-timeout=SECONDS gives the job longer, --on-hang=report "
             "only "
             "tells";
  }
  return "";
}

}  // namespace fsdprun
