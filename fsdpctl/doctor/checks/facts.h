#pragma once

// What the checks know of this machine. Plain data: read by fsdpctl/doctor/machine, made up in
// tests.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun::doctor {

/// Unset: unlimited.
struct Limit {
  std::optional<uint64_t> soft;
  std::optional<uint64_t> hard;
};

struct LimitFacts {
  Limit open_files;
  Limit processes;
  /// In bytes.
  Limit locked_memory;
  Limit core;
  Limit stack;
  /// Limits of processes and of locked memory do not hold for this user.
  bool may_exceed_processes = false;
  bool may_lock_memory = false;
  /// Of the innermost pids cgroup that has a limit; unset: none has.
  std::optional<uint64_t> pids_max;
  uint64_t pids_used = 0;
  /// There are RDMA cards that programs here can use, and GPUs whose data goes through them.
  bool has_rdma = false;
};

/// In bytes.
struct MemoryFacts {
  uint64_t total = 0;
  uint64_t available = 0;
  uint64_t swap_total = 0;
  uint64_t swap_free = 0;
  /// Of the memory cgroup with the lowest limit below what the machine has; unset: there is none.
  std::optional<uint64_t> cgroup_limit;
  /// Without what can be given back.
  uint64_t cgroup_used = 0;
  int oom_score_adj = 0;
  /// vm.overcommit_memory.
  int overcommit = 0;
  /// vm.max_map_count; 0: unknown.
  uint64_t max_map_count = 0;
};

struct CpuFacts {
  int online = 1;
  /// By affinity and cpusets.
  int allowed = 1;
  /// CPUs' worth of time that the cgroup may use; unset: no quota.
  std::optional<double> quota;
  /// OMP_NUM_THREADS; empty: not set.
  std::string omp_threads;
  bool is_in_slurm = false;
};

/// A folder and the file system that it is on.
struct FolderFacts {
  std::string path;
  /// It is not there and will be made: the nearest folder above that is there, of which all that
  /// follows is told. Else empty.
  std::string made_in;
  /// An errno, 0 if it is there and is a directory.
  int error = 0;
  bool is_writable = false;
  /// As statfs has it, `nfs`, `tmpfs`, `ext`; empty: one that has no name here.
  std::string type;
  bool is_network = false;
  /// In bytes, for this user.
  uint64_t total = 0;
  uint64_t free = 0;
  /// Of files; 0 of 0 where the file system has no such limit.
  uint64_t files_total = 0;
  uint64_t files_free = 0;
  /// It did not answer in time; nothing else is known.
  bool hangs = false;
};

struct SharedMemoryFacts {
  FolderFacts folder;
  /// An errno of memfd_create(), 0 if that works.
  int memfd_error = 0;
};

struct StorageFacts {
  FolderFacts temporary;
  /// Of --log-dir.
  std::optional<FolderFacts> logs;
  /// This user's private folder, see RuntimeFolder(), or, where that is not made yet, the one above
  /// it.
  FolderFacts runtime;
  /// The private folder, and whether it is there, and is private.
  std::string runtime_path;
  bool runtime_exists = false;
  bool runtime_is_private = false;
};

struct ProcessFacts {
  /// /proc/self can be read.
  bool has_proc = true;
  /// Errno values, 0 if it works.
  int pidfd_error = 0;
  int subreaper_error = 0;
  /// kernel.yama.ptrace_scope; unset: Yama is not there.
  std::optional<int> ptrace_scope;
  /// Has CAP_SYS_PTRACE.
  bool may_trace = false;
};

struct InterfaceFacts {
  std::string name;
  bool is_up = false;
  /// Up, with a cable or its like.
  bool is_running = false;
  bool is_loopback = false;
  int mtu = 0;
  /// In Mbit/s; 0: unknown, as of virtual ones.
  int speed = 0;
  std::vector<std::string> addresses;
};

struct NetworkFacts {
  /// gethostname().
  std::string host_name;
  /// What it resolves to; empty with a reason.
  std::vector<std::string> resolved;
  std::string lookup_error;
  double lookup_ms = 0;
  /// What `localhost` resolves to.
  std::vector<std::string> localhost;
  std::vector<InterfaceFacts> interfaces;
  /// This machine's address for others; empty without a network.
  std::string routable;
  /// net.ipv4.ip_local_port_range.
  int first_ephemeral = 32768;
  int last_ephemeral = 60999;
  /// Of the rendezvous.
  uint16_t port = 29400;
  /// The user has named it.
  bool port_is_given = false;
  /// Somebody may listen there, and this was not tried.
  bool port_is_unknown = false;
  /// Why it cannot be listened on; empty: it can.
  std::string port_error;
  std::string port_holder;
  /// net.ipv4.tcp_keepalive_time and net.core.somaxconn; 0: unknown.
  int keepalive_s = 0;
  int somaxconn = 0;
  bool has_ipv6 = false;
};

struct ClockFacts {
  /// The kernel tells of its synchronisation.
  bool is_known = true;
  bool is_synchronised = true;
  /// What the kernel takes for the greatest possible error.
  double max_error_ms = 0;
  int64_t unix_seconds = 0;
  /// Such as `tsc`; empty: unknown.
  std::string source;
};

struct Gpu {
  int index = 0;
  std::string name;
  // Unset: the driver does not say.
  std::optional<bool> persistence;
  std::optional<bool> mig;
  /// Since the driver was loaded.
  std::optional<uint64_t> uncorrected_errors;
  std::optional<bool> remap_pending;
  std::optional<bool> remap_failed;
  std::optional<int> pcie_width;
  std::optional<int> pcie_max_width;
  /// NVML's bits of reasons for low clocks.
  std::optional<uint64_t> throttle_reasons;
  /// NVML's; 0: shared.
  std::optional<int> compute_mode;
  std::optional<uint64_t> memory_used;
  std::optional<uint64_t> memory_total;
};

enum class NvmlState {
  /// There is no NVIDIA GPU.
  kNotAsked,
  kMissing,
  kFailed,
  /// It did not answer in time.
  kHangs,
  kAnswered,
};

struct GpuFacts {
  /// NVIDIA's on the PCI bus, and the kernel's drivers that have them, each once, such as
  /// `nouveau`.
  int on_bus = 0;
  std::vector<std::string> bus_drivers{};
  bool has_driver = false;
  /// /dev/nvidia0 and so on, and the other nodes that CUDA needs.
  int device_nodes = 0;
  bool has_control_node = false;
  bool has_uvm_node = false;
  /// AMD's, that ROCm's driver shows.
  int amd = 0;
  /// CUDA_VISIBLE_DEVICES; unset: all.
  std::optional<std::string> visible;
  NvmlState nvml = NvmlState::kNotAsked;
  std::string nvml_error;
  std::string driver_version;
  std::vector<Gpu> gpus;
  /// Of each two, whether one can read the other's memory: those where it cannot.
  int pairs_without_peer_access = 0;
};

struct RdmaPort {
  /// `mlx5_0`.
  std::string device;
  int port = 1;
  /// As /sys has them: `4: ACTIVE`, `200 Gb/sec (4X HDR)`, `InfiniBand`.
  std::string state;
  std::string rate;
  std::string link_layer;
};

struct NcclFacts {
  /// As ncclGetVersion() has it; 0: no library on the search path.
  int version = 0;
  Environment environment;
  std::vector<InterfaceFacts> interfaces;
  std::vector<RdmaPort> rdma;
  /// /dev/infiniband/uverbs*.
  bool has_rdma_nodes = false;
  bool has_gpus = false;
};

struct PythonFacts {
  /// As it was looked for, and where it is; an empty path: it is not there.
  std::string name;
  std::string path;
  /// Empty: it did not say.
  std::string version;
  /// Empty: it has none.
  std::string torch;
  /// Why it did not say anything.
  std::string trouble;
  bool has_gpus = false;
  /// Path of py-spy; empty: not on PATH.
  std::string py_spy;
};

struct InstallationFacts {
  std::string release;
  /// Of the programs beside this one.
  bool has_keeper = false;
  bool has_launcher = false;
  std::string folder;
  /// What `fsdprun --version` says of itself; empty: it was not asked, or did not say.
  std::string launcher_release;
  /// From --token-file or FSDPRUN_TOKEN; 0: not given.
  size_t token_length = 0;
  std::string token_error;
  bool takes_anybody = false;
  /// The secret of this user.
  std::string secret_path;
  bool has_secret = false;
  std::string secret_error;
};

}  // namespace fsdprun::doctor
