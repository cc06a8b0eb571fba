#include "launcher/cli/accelerate_options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "formats/accelerate/accelerate_environment.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun {
namespace {

constexpr int64_t kDefaultPort = 29500;

/// Which say where the nodes of a job are, or who else decides that.
constexpr const char* kPlaces[] = {"agents", "hostfile", "ssh", "attach", "daemon"};
constexpr const char* kMeetings[] = {"standalone",  "rdzv-backend", "rdzv-endpoint",
                                     "master-addr", "master-port",  "coordinator"};

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
    launch_.variables = AccelerateEnvironment(config_);
    launch_.warnings = config_.warnings();
    if (config_.Flag("enable_cpu_affinity", false)) {
      // accelerate launch takes it from its command line alone.
      launch_.warnings.push_back(absl::StrCat(config_.Place("enable_cpu_affinity"),
                                              ": not used, as by accelerate launch; "
                                              "--numa-binding binds workers to CPUs"));
    }
    CountProcesses();
    const bool is_placed = HasAny(given_, kPlaces) || environment.count("SLURM_JOB_ID") > 0;
    if (!is_placed && !given_.IsOn("standalone")) {
      Add("nnodes", absl::StrCat(machines_));
      machines_ > 1 ? MeetOthers() : ChoosePort();
    }
    ChooseThreads(environment);
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

  void CountProcesses() {
    const std::optional<int64_t> processes = config_.Number("num_processes");
    if (config_.Word("distributed_type", "") == "NO") {
      if (processes.value_or(1) > 1) {
        launch_.warnings.push_back(
            absl::StrCat(config_.Place("num_processes"),
                         ": not used: distributed_type NO is one process; MULTI_CPU, MULTI_GPU or "
                         "FSDP has several"));
      }
      Add("nproc-per-node", "1");
      return;
    }
    machines_ = config_.Number("num_machines").value_or(1);
    // accelerate writes -1 where it is to be given on the command line.
    if (!processes || *processes == -1) {
      if (given_.Find("nproc-per-node") == nullptr) {
        throw ConfigError(absl::StrCat(config_.Place("num_processes"),
                                       " is missing: expected how many processes there are on all "
                                       "machines; or give --nproc-per-node"));
      }
      return;
    }
    if (*processes < 1 || *processes % machines_ != 0) {
      config_.Refuse(
          "num_processes",
          machines_ == 1 ? "1 or more" : absl::StrCat("a multiple of num_machines, ", machines_));
    }
    local_processes_ = *processes / machines_;
    Add("nproc-per-node", absl::StrCat(local_processes_));
  }

  /// Of several machines.
  void MeetOthers() {
    const int64_t rank = config_.Number("machine_rank").value_or(0);
    if (rank >= machines_) {
      config_.Refuse("machine_rank", absl::StrCat("a rank below num_machines, ", machines_));
    }
    if (!HasAny(given_, kMeetings)) {
      const std::string backend = absl::AsciiStrToLower(config_.Text("rdzv_backend", "static"));
      const HostPort endpoint = Endpoint();
      if (backend != "static") {
        Add("rdzv-backend", backend);
      }
      Add("rdzv-endpoint", ToString(endpoint));
    }
    Add("node-rank", absl::StrCat(rank));
  }

  HostPort Endpoint() const {
    const std::string host = config_.Text("main_process_ip", "");
    if (host.empty()) {
      throw ConfigError(absl::StrCat(config_.Place("main_process_ip"),
                                     " is missing: expected the address of the machine with "
                                     "machine_rank 0, as num_machines is ",
                                     machines_, "; or give --rdzv-endpoint"));
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
    if (!port || HasAny(given_, kMeetings)) {
      return;
    }
    if (*port != 0 && !surroundings_.is_port_free(static_cast<uint16_t>(*port))) {
      launch_.warnings.push_back(absl::StrCat(config_.Place("main_process_port"), ": ", *port,
                                              " is in use; another one is taken"));
      Add("master-port", "0");
      return;
    }
    Add("master-port", absl::StrCat(*port));
  }

  /// accelerate always says how many threads a worker has.
  void ChooseThreads(const Environment& environment) {
    if (environment.count("OMP_NUM_THREADS") > 0 || given_.Find("omp-threads") != nullptr) {
      return;
    }
    const int64_t threads =
        config_.Flag("use_cpu", false) ? surroundings_.physical_cores / local_processes_ : 1;
    launch_.variables["OMP_NUM_THREADS"] = absl::StrCat(std::max<int64_t>(1, threads));
  }

  const CliProgram program_;
  const RawOptions& given_;
  const AccelerateConfig& config_;
  const AccelerateSurroundings& surroundings_;
  int64_t machines_ = 1;
  int64_t local_processes_ = 1;
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
