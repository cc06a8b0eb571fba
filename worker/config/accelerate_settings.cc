#include "worker/config/accelerate_settings.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string_view>

namespace fsdprun::worker {
namespace {

constexpr char kFsdp[] = "fsdp_config.fsdp_";
constexpr char kParallelism[] = "parallelism_config.parallelism_config_";

/// Which fsdprun's --accelerate-config takes, or tells of.
constexpr std::string_view kOfLauncher[] = {"num_processes",       "num_machines",
                                            "machine_rank",        "main_process_ip",
                                            "main_process_port",   "rdzv_backend",
                                            "same_network",        "gpu_ids",
                                            "compute_environment", "mpirun_config.mpirun_hostfile"};

/// Which are settings here, or were refused.
constexpr std::string_view kHonoured[] = {"distributed_type", "mixed_precision", "use_cpu"};

/// The same with distributed_type FSDP. Which key names the strategy: StrategyKey().
constexpr std::string_view kHonouredOfFsdp[] = {
    "fsdp_config.fsdp_version",
    "fsdp_config.fsdp_offload_params",
    "fsdp_config.fsdp_activation_checkpointing",
    "fsdp_config.fsdp_activation_checkpointing_offload",
    "parallelism_config.parallelism_config_dp_replicate_size",
    "parallelism_config.parallelism_config_tp_size",
    "parallelism_config.parallelism_config_cp_size",
    "parallelism_config.parallelism_config_sp_size"};

template <size_t kCount>
bool IsAmong(std::string_view name, const std::string_view (&names)[kCount]) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void RefuseIfOn(const AccelerateConfig& config, const std::string& name, const std::string& why) {
  if (config.Flag(name, false)) {
    config.Refuse(name, "false: " + why);
  }
}

bool IsFsdp(const AccelerateConfig& config) {
  return config.Word("distributed_type", "") == "FSDP";
}

void CheckType(const AccelerateConfig& config, const AccelerateWorld& world) {
  const std::string type = config.Word("distributed_type", "");
  if (type != "FSDP" && type != "NO") {
    config.Refuse("distributed_type",
                  "FSDP: fsdp-train shards what it trains (or NO, for one process)");
  }
  if (type == "NO" && world.world_size > 1) {
    config.Refuse("distributed_type",
                  "FSDP: NO is for one process, and there are " + std::to_string(world.world_size));
  }
}

void RefuseWhatIsMissing(const AccelerateConfig& config) {
  if (config.Word("mixed_precision", "NO") == "FP16") {
    config.Refuse("mixed_precision", "no or bf16: fsdp-train has no float16");
  }
  if (!IsFsdp(config)) {
    return;  // The sections are left from another distributed_type.
  }
  RefuseIfOn(config, std::string(kFsdp) + "offload_params",
             "fsdp-train keeps its shards where it computes");
  RefuseIfOn(config, std::string(kFsdp) + "activation_checkpointing_offload",
             "fsdp-train recomputes activations and moves none");
  const std::string ignored = std::string(kFsdp) + "ignored_modules";
  if (config.Find(ignored) != nullptr) {
    config.Refuse(ignored, "no such key: fsdp-train shards all parameters");
  }
  for (const char* size : {"tp_size", "cp_size", "sp_size"}) {
    const std::string name = std::string(kParallelism) + size;
    if (config.Number(name).value_or(1) > 1) {
      config.Refuse(name, "1: fsdp-train divides neither matrices nor sequences");
    }
  }
}

bool IsVersion1(const AccelerateConfig& config) {
  return config.Text(std::string(kFsdp) + "version", "1") == "1";
}

/// Of the two keys that name a strategy the one that counts. With version 1 `accelerate launch`
/// always sets the sharding strategy, FULL_SHARD if the file has none, and an Accelerator that has
/// one does not look at the other.
std::string StrategyKey(const AccelerateConfig& config) {
  return std::string(kFsdp) + (IsVersion1(config) ? "sharding_strategy" : "reshard_after_forward");
}

/// Of HYBRID: sharded within a node, copied between them.
int NumberOfNodes(const AccelerateConfig& config, const std::string& key,
                  const AccelerateWorld& world) {
  if (world.world_size % world.local_world_size != 0) {
    config.Refuse(key, "FULL_SHARD or SHARD_GRAD_OP: the " + std::to_string(world.world_size) +
                           " ranks are not on nodes with " +
                           std::to_string(world.local_world_size) + " each");
  }
  return world.world_size / world.local_world_size;
}

void SetStrategyOfVersion1(const AccelerateConfig& config, const AccelerateWorld& world,
                           Json& parallel) {
  const std::string key = StrategyKey(config);
  const std::string strategy = config.Word(key, "FULL_SHARD");
  if (strategy == "NO_SHARD" || strategy == "3") {
    config.Refuse(key, "a strategy that shards: fsdp-train has none without");
  }
  const bool is_hybrid = strategy.starts_with("HYBRID") || strategy == "4" || strategy == "5";
  const bool keeps = strategy == "SHARD_GRAD_OP" || strategy == "2" ||
                     strategy == "HYBRID_SHARD_ZERO2" || strategy == "5";
  parallel["strategy"] = keeps ? "shard_grad_op" : "full_shard";
  if (is_hybrid) {
    parallel["dp_replicate"] = NumberOfNodes(config, key, world);
  }
}

void SetStrategy(const AccelerateConfig& config, const AccelerateWorld& world, Json& parallel) {
  if (IsVersion1(config)) {
    SetStrategyOfVersion1(config, world, parallel);
  } else {
    const std::string key = StrategyKey(config);
    if (config.Find(key) != nullptr && !config.Find(key)->is_bool) {
      config.Refuse(key, "true or false, as fsdp_version is 2");
    }
    parallel["strategy"] = config.Flag(key, true) ? "full_shard" : "shard_grad_op";
  }
  if (const auto copies = config.Number(std::string(kParallelism) + "dp_replicate_size")) {
    parallel["dp_replicate"] = *copies;
  }
}

Json SettingsIn(const AccelerateConfig& config, const AccelerateWorld& world) {
  Json settings = Json::object();
  if (config.Find("mixed_precision") != nullptr) {
    // accelerate, too, gives outputs back in float32.
    const char* dtype = config.Word("mixed_precision", "") == "BF16" ? "bfloat16" : "float32";
    settings["precision"] = {{"param", dtype}, {"reduce", dtype}, {"output", "float32"}};
  }
  Json parallel = Json::object();
  if (IsFsdp(config)) {
    SetStrategy(config, world, parallel);
    const std::string name = std::string(kFsdp) + "activation_checkpointing";
    if (config.Find(name) != nullptr) {
      settings["train"] = {{"activation_checkpointing", config.Flag(name, false)}};
    }
  }
  if (config.Flag("use_cpu", false)) {
    parallel["backend"] = world.world_size > world.local_world_size ? "gloo" : "shm";
  }
  if (!parallel.empty()) {
    settings["parallel"] = std::move(parallel);
  }
  return settings;
}

bool IsHonoured(const AccelerateConfig& config, std::string_view name) {
  return IsAmong(name, kHonoured) ||
         (IsFsdp(config) && (IsAmong(name, kHonouredOfFsdp) || name == StrategyKey(config)));
}

/// Every key that is not a setting, once.
std::vector<std::string> NotesOn(const AccelerateConfig& config) {
  std::string of_launcher;
  std::string without_meaning;
  for (const auto& [name, setting] : config.settings()) {
    if (!IsHonoured(config, name)) {
      std::string& list = IsAmong(name, kOfLauncher) ? of_launcher : without_meaning;
      list += (list.empty() ? "" : ", ") + name;
    }
  }
  std::vector<std::string> notes = config.warnings();
  if (!of_launcher.empty()) {
    notes.push_back(config.source() +
                    ": for the launcher (fsdprun --accelerate-config): " + of_launcher);
  }
  if (!without_meaning.empty()) {
    notes.push_back(config.source() + ": has no meaning here: " + without_meaning);
  }
  return notes;
}

}  // namespace

AccelerateSettings SettingsOfAccelerate(const AccelerateConfig& config,
                                        const AccelerateWorld& world) {
  CheckType(config, world);
  RefuseWhatIsMissing(config);
  return {SettingsIn(config, world), NotesOn(config)};
}

}  // namespace fsdprun::worker
