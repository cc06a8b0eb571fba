#include "launcher/cli/accelerate_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/accelerate/accelerate_environment.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"
#include "proto/lone_worker.h"

namespace fsdprun {
namespace {

constexpr int64_t kDefaultPort = 29500;

/// Which say where the nodes of a job are, or who else decides that.
constexpr const char* kPlaces[] = {"agents", "hostfile", "ssh", "attach", "daemon"};
/// Which say where several machines meet.
constexpr const char* kEndpoints[] = {"standalone", "rdzv-endpoint", "master-addr", "master-port",
                                      "coordinator"};
/// Nodes of these are other machines than this one.
constexpr const char* kHosts[] = {"agents", "hostfile"};

template <size_t kCount>
bool HasAny(const RawOptions& given, const char* const (&names)[kCount]) {
  return std::any_of(std::begin(names), std::end(names),
                     [&given](const char* name) { return given.Find(name) != nullptr; });
}

/// Adds what the command line does not say itself. Throws ConfigError.
class Planner {
 public:
  Planner(CliProgram program, const RawOptions& given, const AccelerateConfig& config,
          const AccelerateSurroundings& surroundings)
      : program_(program), given_(given), config_(config), surroundings_(surroundings) {}

  AccelerateLaunch Plan(const Environment& environment) {
    is_placed_ = HasAny(given_, kPlaces) || environment.count("SLURM_JOB_ID") > 0;
    launch_.variables = AccelerateEnvironment(config_);
    launch_.warnings = config_.warnings();
    WarnOfUnusedKeys();
    CountMachines();
    CountProcesses();
    if (!is_placed_ && !given_.IsOn("standalone")) {
      Add("nnodes", absl::StrCat(machines_));
      machines_ > 1 ? MeetOthers() : ChoosePort();
    }
    ChooseThreads(environment);
    LeaveOutRanks();
    return std::move(launch_);
  }

 private:
  void Add(const char* name, const std::string& value) {
    for (const OptionSpec& option : OptionsOf(program_)) {
      if (option.name == absl::string_view(name) && given_.Find(name) == nullptr) {
        launch_.options.push_back(absl::StrCat("--", name, "=", value));
      }
    }
  }

  void Warn(const char* key, absl::string_view what) {
    launch_.warnings.push_back(absl::StrCat(config_.Place(key), ": ", what));
  }

  bool IsOneProcess() const { return config_.Word("distributed_type", "") == "NO"; }

  /// Keys from which their user expects something that does not come about.
  void WarnOfUnusedKeys() {
    // The first two accelerate launch takes from its command line alone.
    if (config_.Flag("enable_cpu_affinity", false)) {
      Warn("enable_cpu_affinity",
           "not used, as by accelerate launch; --numa-binding binds workers to CPUs");
    }
    if (config_.Word("rdzv_backend", "STATIC") != "STATIC") {
      Warn("rdzv_backend", "not used, as by accelerate launch; give --rdzv-backend");
    }
    if (HasAny(given_, kHosts) && config_.Text("gpu_ids", "all") != "all") {
      Warn("gpu_ids",
           "not sent to the nodes, whose GPUs are others; see --devices of their daemons");
    }
    const char* const hosts = "mpirun_config.mpirun_hostfile";
    if (IsSimpleLaunch(config_) && config_.Find(hosts) != nullptr && !HasAny(given_, kHosts)) {
      Warn(hosts,
           "not used, as workers are started without mpirun; for the machines that it names give "
           "--hostfile");
    }
  }

  /// As accelerate's --num_machines, --nnodes stands for the key wherever that is looked at.
  void CountMachines() {
    machines_ = IsOneProcess() ? 1 : config_.Number("num_machines").value_or(1);
    const RawValue* nodes = given_.Find("nnodes");
    if (nodes == nullptr || is_placed_ || given_.IsOn("standalone")) {
      return;
    }
    if (const auto numbers = ToNodeNumbers(*nodes); numbers.ok()) {  // Else it is refused later.
      machines_ = numbers->max;
      machines_key_ = "--nnodes";
    }
  }

  void CountProcesses() {
    const std::optional<int64_t> processes = config_.Number("num_processes");
    if (const RawValue* given = given_.Find("nproc-per-node")) {
      const bool is_number = absl::SimpleAtoi(given->text, &local_processes_);
      local_processes_ = is_number ? std::max<int64_t>(0, local_processes_) : 0;
    } else if (IsOneProcess()) {
      if (processes.value_or(1) > 1) {
        Warn("num_processes",
             "not used: distributed_type NO is one process; MULTI_CPU, MULTI_GPU or FSDP has "
             "several");
      }
    } else if (!processes || *processes == -1) {
      // accelerate writes -1 where it is to be given on the command line.
      throw ConfigError(absl::StrCat(config_.Place("num_processes"),
                                     " is missing: expected how many processes there are on all "
                                     "machines; or give --nproc-per-node"));
    } else if (*processes < 1 || *processes % machines_ != 0) {
      config_.Refuse("num_processes", machines_ == 1 ? "1 or more"
                                                     : absl::StrCat("a multiple of ", machines_key_,
                                                                    ", ", machines_));
    } else {
      local_processes_ = *processes / machines_;
    }
    Add("nproc-per-node", absl::StrCat(local_processes_));
  }

  /// Of several machines.
  void MeetOthers() {
    const int64_t rank = config_.Number("machine_rank").value_or(0);
    if (rank >= machines_ && given_.Find("node-rank") == nullptr) {
      config_.Refuse("machine_rank", absl::StrCat("a rank below ", machines_key_, ", ", machines_));
    }
    if (!HasAny(given_, kEndpoints)) {
      Add("rdzv-endpoint", ToString(Endpoint()));
    }
    Add("node-rank", absl::StrCat(rank));
  }

  HostPort Endpoint() const {
    const std::string host = config_.Text("main_process_ip", "");
    if (host.empty()) {
      throw ConfigError(absl::StrCat(config_.Place("main_process_ip"),
                                     " is missing: expected the address of the machine with "
                                     "machine_rank 0, as ",
                                     machines_key_, " is ", machines_,
                                     "; or give --rdzv-endpoint"));
    }
    if (!IsHost(host)) {
      config_.Refuse("main_process_ip", "the name or address of a host");
    }
    const int64_t port = config_.Number("main_process_port").value_or(kDefaultPort);
    if (port == 0) {
      config_.Refuse("main_process_port",
                     "a port from 1 to 65535: several machines cannot know which one is free");
    }
    return {host, static_cast<uint16_t>(port)};
  }

  /// Of one machine: one that is taken is replaced, as accelerate does.
  void ChoosePort() {
    const std::optional<int64_t> port = config_.Number("main_process_port");
    if (!port || HasAny(given_, kEndpoints) || given_.Find("rdzv-backend") != nullptr) {
      return;
    }
    if (*port != 0 && !surroundings_.is_port_free(static_cast<uint16_t>(*port))) {
      Warn("main_process_port", absl::StrCat(*port, " is in use; another one is taken"));
      Add("master-port", "0");
      return;
    }
    Add("master-port", absl::StrCat(*port));
  }

  /// accelerate always says how many threads a worker has.
  void ChooseThreads(const Environment& environment) {
    const bool uses_cpu = config_.Flag("use_cpu", false);
    const bool may_be_several = local_processes_ != 1 || given_.Find("hostfile") != nullptr;
    if (may_be_several && given_.Find("numa-binding") == nullptr) {
      // It is for processes that mpirun has bound. The threads of workers that are not bound would
      // all be on the same first cores.
      launch_.variables.erase("KMP_AFFINITY");
    }
    if (environment.count("OMP_NUM_THREADS") > 0 || given_.Find("omp-threads") != nullptr) {
      return;
    }
    if (uses_cpu && (is_placed_ || local_processes_ == 0)) {
      Add("omp-threads", "auto");  // The nodes know how many cores and workers they have.
      return;
    }
    const int64_t threads = uses_cpu ? surroundings_.physical_cores / local_processes_ : 1;
    launch_.variables["OMP_NUM_THREADS"] = absl::StrCat(std::max<int64_t>(1, threads));
  }

  /// Of a job whose nodes are known without the file.
  bool MayHaveSeveralNodes() const {
    const RawValue* nodes = given_.Find("nnodes");
    const RawValue* agents = given_.Find("agents");
    const auto numbers = nodes != nullptr ? ToNodeNumbers(*nodes) : absl::StatusOr<NodeNumbers>();
    return given_.Find("hostfile") != nullptr || (numbers.ok() && numbers->max > 1) ||
           (agents != nullptr && agents->text.find(',') != std::string::npos);
  }

  /// accelerate launch starts one process as a shell would. From LOCAL_RANK an Accelerator would
  /// make distributed data parallelism: a model in another one, whose keys have other names.
  void LeaveOutRanks() {
    // Of several nodes one may be alone after the others are lost.
    const bool is_alone = machines_ == 1 && local_processes_ == 1 &&
                          (!is_placed_ || (IsOneProcess() && !MayHaveSeveralNodes()));
    if (is_alone && IsSimpleLaunch(config_)) {
      launch_.variables.emplace(contract::kEnvLoneWorkerIsPlain, "1");
    }
  }

  const CliProgram program_;
  const RawOptions& given_;
  const AccelerateConfig& config_;
  const AccelerateSurroundings& surroundings_;
  bool is_placed_ = false;  // The nodes are known without the file.
  int64_t machines_ = 1;
  const char* machines_key_ = "num_machines";  // What says so.
  int64_t local_processes_ = 1;                // 0: known where they are started.
  AccelerateLaunch launch_;
};

}  // namespace

absl::StatusOr<std::string> AccelerateFile(CliProgram program,
                                           const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const RawOptions given, OptionsOfArguments(program, args));
  for (const char* text : {"help", "version", "man", "completion"}) {
    if (given.Find(text) != nullptr) {
      return std::string();
    }
  }
  return given.TextOf("accelerate-config");
}

absl::StatusOr<AccelerateLaunch> PlanAccelerate(CliProgram program,
                                                const std::vector<std::string>& args,
                                                const AccelerateConfig& config,
                                                const Environment& environment,
                                                const AccelerateSurroundings& surroundings) {
  ASSIGN_OR_RETURN(const RawOptions given, OptionsOfArguments(program, args));
  try {
    return Planner(program, given, config, surroundings).Plan(environment);
  } catch (const ConfigError& error) {
    return absl::InvalidArgumentError(error.what());
  }
}

}  // namespace fsdprun
