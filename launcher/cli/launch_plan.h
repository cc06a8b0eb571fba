#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "agent/output/output_options.h"

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

enum class RendezvousBackend { kStatic, kC10d, kEtcd };
const char* BackendName(RendezvousBackend backend);

/// How etcd is reached, of the backends etcd and etcd-v2, which both speak v3, and of a journal.
struct EtcdOptions {
  bool uses_tls = false;
  std::string ca_file;
  std::string certificate_file;
  std::string key_file;
  /// Of all keys of the rendezvous; with a slash in front and none at the end.
  std::string prefix = "/torchelastic/p2p";

  bool operator==(const EtcdOptions&) const = default;
};

/// Where a coordinator keeps the record of its job: in a folder, in an etcd, or nowhere.
struct JournalPlace {
  std::string folder;
  /// Members of one etcd.
  std::vector<HostPort> etcd;
  /// Of the keys there; with a slash in front and none at the end. The run id follows.
  std::string prefix;

  bool is_given() const { return !folder.empty() || !etcd.empty(); }
  bool operator==(const JournalPlace&) const = default;
};

/// As the user wrote it, with what was left out.
std::string ToString(const JournalPlace& place);

/// How the words after the options become a command.
enum class ProgramKind {
  kPythonScript,  ///< `python -u SCRIPT ARGS`
  kPythonModule,  ///< `python -u -m MODULE ARGS`
  kExecutable,    ///< `PROGRAM ARGS`
};

enum class EventHandler { kNull, kConsole };

/// Which CPUs a worker may use; torchrun's --numa-binding.
enum class NumaBinding { kNone, kNode, kSocket, kExclusive, kCoreComplex };
const char* NumaBindingName(NumaBinding binding);

/// What the workers read as standard input.
enum class StdinSource {
  kInherit,   ///< The launcher's, all of them, as torchrun.
  kRankZero,  ///< The launcher's goes to this node's local rank 0, the others get /dev/null.
  kNone,      ///< /dev/null
};

/// Who gets the signal that ends the workers of a node, before the rest of them is killed.
enum class StopSignalTo { kGroup, kLeader };

/// What the exit code says when a worker has failed.
enum class ExitCodeStyle {
  kTorchrun,  ///< 1
  kWorker,    ///< That of the root cause; 128 + n for signal n.
};

/// What is done when the workers do not get on.
enum class OnHang { kReport, kRestart, kAbort };
const char* OnHangName(OnHang on_hang);

/// How it is watched whether they do.
struct WatchPlan {
  OnHang on_hang = OnHang::kReport;
  bool looks_for_hangs = true;
  /// Unset: learnt from the run.
  std::optional<std::chrono::milliseconds> hang_timeout;
  /// Of the first steps, while nothing has been learnt.
  std::chrono::milliseconds warm_up{600'000};
  /// 0: none is named.
  double straggler_ratio = 0.1;
};

/// When another run of the same job is asked for, of the scheduler that has started this one.
enum class RequeueMode {
  kAuto,    ///< If the workers were stopped before their end, and another run would go on.
  kAlways,  ///< The same, and the program is known to go on from what it has saved.
  kNever,
};
const char* RequeueModeName(RequeueMode mode);

/// The job of a scheduler (Slurm) that a launcher belongs to.
struct SchedulerJob {
  /// `12`, or `12_3` for a member of an array.
  std::string name;
  /// What was granted. A signal that the scheduler sends reaches all of them.
  std::vector<std::string> nodes;
  /// How often the job was requeued.
  int restarts = 0;

  bool operator==(const SchedulerJob&) const = default;
};

/// A node of a job whose launcher has the nodes' parts started: where its daemon (fsdp-agent
/// --daemon) listens, or its sshd.
struct AgentHost {
  HostPort daemon;
  /// 0: as --nproc-per-node says.
  int workers = 0;

  bool operator==(const AgentHost&) const = default;
};

/// Which variables of the launcher go to daemons: see Note [Which variables travel].
struct ForwardedVariables {
  /// Those that mean something there.
  bool is_default = true;
  /// Else these: `NAME` or `PREFIX*`.
  std::vector<std::string> names;

  bool operator==(const ForwardedVariables&) const = default;
};

/// How the launcher starts the nodes' parts of the job where there are no daemons.
struct SshOptions {
  /// The program, and its first words; never empty.
  std::vector<std::string> command{"ssh"};
  /// What is started on the nodes; empty: this same program, under its path here.
  std::string program;

  bool operator==(const SshOptions&) const = default;
};

/// Of fsdp-agent --daemon.
struct DaemonOptions {
  HostPort listen;
  /// Workers at a time; 0: one for each device, or for each usable CPU where there are none.
  int slots = 0;
  /// As CUDA_VISIBLE_DEVICES has them; unset: those that are visible.
  std::optional<std::vector<std::string>> devices;
  /// Empty: one of this user.
  std::string runtime_dir;
  /// How long a part of a job goes on without its launcher.
  std::chrono::milliseconds lost_grace{30'000};

  bool operator==(const DaemonOptions&) const = default;
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
  /// For the operator, before the start.
  std::vector<std::string> warnings;
  /// The plan of an fsdp-agent, which gets the job-wide settings from the coordinator.
  bool is_agent = false;

  /// Nothing but the job's coordinator runs in this process: no agent, no workers, no program.
  bool is_coordinator = false;
  /// Where that keeps what another one needs to take the job over.
  JournalPlace journal;

  /// The job runs on these hosts, by their daemons or through ssh, and this launcher has no worker:
  /// the hosts, or the file that names them, which the caller reads (TakeHosts()).
  std::vector<AgentHost> agents;
  std::string host_file;
  /// Instead of daemons.
  std::optional<SshOptions> ssh;
  ForwardedVariables forwarded_variables;
  /// The job goes on without this process, at the first of the daemons.
  bool detaches = false;
  /// Where such a job is; this process only follows it. Empty: none.
  std::string attached_session;
  HostPort attached_daemon;
  /// This process is such a daemon.
  std::optional<DaemonOptions> daemon;

  // What was given, not taken from a default: a scheduler's allocation decides the rest.
  bool nnodes_is_given = false;
  bool nproc_is_given = false;
  /// Any option that says where the others are: an endpoint, a backend that needs one, a master's
  /// address, a node rank, --standalone.
  bool rendezvous_is_given = false;

  // Membership.
  int min_nodes = 1;
  int max_nodes = 1;
  /// 0: of nodes with a daemon, each as many as it has devices.
  int nproc_per_node = 1;
  /// -1 = not requested.
  int node_rank = -1;
  std::string role = "default";
  /// This node's name to the scheduler; empty: gethostname().
  std::string node_name;
  /// Of several launchers on this node that have one worker each, where this one's worker is among
  /// those of the node; unset: this launcher has them all.
  struct LocalPlace {
    int local_rank = 0;
    int local_world_size = 1;

    bool operator==(const LocalPlace&) const = default;
  };
  std::optional<LocalPlace> local_place;

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
  /// keep_alive_interval times keep_alive_max_attempt, where one of them was given: a node that was
  /// not heard of for so long is lost.
  std::optional<std::chrono::milliseconds> node_lease;
  /// How long one attempt to reach the coordinator or etcd may take.
  std::optional<std::chrono::milliseconds> read_timeout;
  /// Addresses of hosts, by name, for those that no name service knows.
  std::map<std::string, std::string> known_hosts;
  /// What ends the job is said by the launcher that hosts its coordinator, on the same console.
  bool shares_console = false;
  /// A session of a daemon: where another process of it finds its keeper; else empty.
  std::string keeper_socket;
  /// Where another program of this job has said that the coordinator is; else empty.
  std::vector<HostPort> coordinators;
  /// c10d: this launcher must host the coordinator, or must not; unset: the first that binds the
  /// endpoint does. etcd: a --coordinator must, a launcher must not; unset: the first that claims
  /// the run id does.
  std::optional<bool> is_host;
  /// c10d with store_type=file: the endpoint is a file that all nodes see.
  bool uses_file = false;
  std::string rendezvous_file;
  EtcdOptions etcd;
  std::string token_file;
  /// Anybody who reaches the coordinator may join.
  bool takes_anybody = false;
  /// Files for TLS, in PEM; empty: not given. The certificate and its key come together.
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_ca;

  // Failures.
  int max_restarts = 0;
  std::chrono::milliseconds shutdown_timeout{30'000};
  std::chrono::milliseconds abort_timeout{2'000};
  /// Pause before the first restart, doubled before each further one, up to the maximum.
  std::chrono::milliseconds restart_backoff{0};
  std::chrono::milliseconds max_restart_backoff{0};
  /// So many failures in a row of one node, within the window, and the job goes on without it where
  /// it can; 0: never.
  int quarantine_after = 3;
  std::chrono::milliseconds quarantine_window{600'000};
  WatchPlan watch;
  StopSignalTo stop_signal_to = StopSignalTo::kGroup;

  /// As given, for TORCHELASTIC_SIGNALS_TO_HANDLE; the signals that it names; and what it has that
  /// names none.
  std::string signals_text;
  std::vector<int> signals;
  std::vector<std::string> unknown_signals;
  /// Signals that are passed to the workers' own processes while the job goes on.
  std::vector<int> forwarded_signals;
  ExitCodeStyle exit_code_style = ExitCodeStyle::kTorchrun;
  std::optional<SchedulerJob> scheduler_job;
  RequeueMode requeue = RequeueMode::kAuto;
  /// How long before the end of the time limit the workers are stopped, to save.
  std::optional<std::chrono::milliseconds> requeue_margin;

  // Output.
  /// Empty: a temporary directory.
  std::string log_dir;
  OutputOptions output;
  EventHandler event_handler = EventHandler::kNull;

  // The program.
  ProgramKind program_kind = ProgramKind::kPythonScript;
  /// The script, module or executable, then its arguments, verbatim (no placeholder replaced).
  std::vector<std::string> program;
  bool has_virtual_local_rank = false;
  /// As torch.distributed.launch without --use-env: the first argument is --local-rank=N.
  bool passes_local_rank = false;
  NumaBinding numa_binding = NumaBinding::kNone;
  StdinSource stdin_source = StdinSource::kInherit;
  /// This launcher takes part as a task of a step of Slurm.
  bool has_place_of_slurm = false;
  /// Workers get the variables about this launcher's own task, too.
  bool keeps_slurm_variables = false;
  /// Further words for srun.
  std::vector<std::string> srun_arguments;
  /// OMP_NUM_THREADS of several workers on one node: 0 for torchrun's rule (1, unless it is set).
  int omp_threads = 0;
  /// They are this node's cores over its workers (--omp-threads=auto).
  bool divides_cores = false;

  bool IsSingleNode() const { return max_nodes == 1; }
  /// The job's nodes are run by daemons, or through ssh.
  bool HasAgents() const { return !agents.empty() || !host_file.empty(); }
};

/// The plan as `key: value` lines, for --dry-run.
std::string DescribePlan(const LaunchPlan& plan);

}  // namespace fsdprun
