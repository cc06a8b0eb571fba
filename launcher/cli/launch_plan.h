#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace fsdprun {

/// Host and port as the user wrote them. IPv6 hosts are kept without brackets. An empty host means
/// "not given".
struct HostPort {
  std::string host;
  uint16_t port = 0;

  bool operator==(const HostPort&) const = default;
};

/// `host:port`, with brackets around an IPv6 host.
std::string ToString(const HostPort& endpoint);

enum class RendezvousBackend { kStatic, kC10d };

/// How the words after the options become a command.
enum class ProgramKind {
  kPythonScript,  ///< `python -u SCRIPT ARGS`
  kPythonModule,  ///< `python -u -m MODULE ARGS`
  kExecutable,    ///< `PROGRAM ARGS`
};

enum class Request { kRun, kDryRun, kHelp, kVersion, kManPage, kCompletion };

enum class Shell { kBash, kZsh, kFish };
const char* ShellName(Shell shell);

/// Everything that the command line and the PET_* environment decide, with all defaults filled in.
/// Plain data.
struct LaunchPlan {
  Request request = Request::kRun;
  /// Of kCompletion.
  Shell completion = Shell::kBash;
  /// The plan of an fsdp-agent, which gets the job-wide settings from the coordinator.
  bool is_agent = false;

  // Membership.
  int min_nodes = 1;
  int max_nodes = 1;
  int nproc_per_node = 1;
  /// -1 = not requested (always with c10d, which assigns ranks itself).
  int node_rank = -1;
  std::string role = "default";

  // Rendezvous.
  RendezvousBackend backend = RendezvousBackend::kStatic;
  /// The coordinator's address; empty host for a job of one node.
  HostPort endpoint;
  std::string rdzv_id = "none";
  bool rdzv_id_is_random = false;
  std::string master_addr = "127.0.0.1";
  uint16_t master_port = 29500;
  bool master_port_is_explicit = false;
  /// Empty = chosen from the route to the coordinator.
  std::string local_addr;
  std::chrono::milliseconds join_timeout{600'000};
  std::chrono::milliseconds last_call_timeout{30'000};
  std::string token_file;

  // Failures.
  int max_restarts = 0;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds abort_timeout{2'000};

  /// As given, for TORCHELASTIC_SIGNALS_TO_HANDLE; the signals that it names; and what it has that
  /// names none.
  std::string signals_text;
  std::vector<int> signals;
  std::vector<std::string> unknown_signals;

  // Output.
  std::string log_dir;

  // The program.
  ProgramKind program_kind = ProgramKind::kPythonScript;
  /// The script, module or executable, then its arguments, verbatim (no placeholder replaced).
  std::vector<std::string> program;
  bool has_virtual_local_rank = false;

  bool IsSingleNode() const { return max_nodes == 1; }
};

/// The plan as `key: value` lines, for --dry-run.
std::string DescribePlan(const LaunchPlan& plan);

}  // namespace fsdprun
