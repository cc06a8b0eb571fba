#include "formats/accelerate/accelerate_environment.h"

#include <string_view>

namespace fsdprun {
namespace {

using Variables = std::map<std::string, std::string>;

/// As Python prints a boolean.
std::string PythonBool(bool flag) { return flag ? "True" : "False"; }

std::string InLowerCase(std::string text) {
  for (char& c : text) {
    c = 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return text;
}

/// A setting that is a variable under another name. `missing`: its default; nullptr: no variable.
struct Renamed {
  std::string_view setting;
  const char* variable;
  const char* missing;
};

constexpr Renamed kFsdp[] = {
    {"fsdp_version", "FSDP_VERSION", "1"},
    {"fsdp_sharding_strategy", "FSDP_SHARDING_STRATEGY", "FULL_SHARD"},
    {"fsdp_offload_params", "FSDP_OFFLOAD_PARAMS", "false"},
    {"fsdp_min_num_params", "FSDP_MIN_NUM_PARAMS", "100000000"},
    {"fsdp_auto_wrap_policy", "FSDP_AUTO_WRAP_POLICY", nullptr},
    {"fsdp_transformer_layer_cls_to_wrap", "FSDP_TRANSFORMER_CLS_TO_WRAP", nullptr},
    {"fsdp_backward_prefetch", "FSDP_BACKWARD_PREFETCH", nullptr},
    {"fsdp_state_dict_type", "FSDP_STATE_DICT_TYPE", nullptr},
    {"fsdp_forward_prefetch", "FSDP_FORWARD_PREFETCH", "false"},
    {"fsdp_use_orig_params", "FSDP_USE_ORIG_PARAMS", "true"},
    {"fsdp_cpu_ram_efficient_loading", "FSDP_CPU_RAM_EFFICIENT_LOADING", "true"},
    {"fsdp_sync_module_states", "FSDP_SYNC_MODULE_STATES", "true"},
    {"fsdp_activation_checkpointing", "FSDP_ACTIVATION_CHECKPOINTING", "false"},
    {"fsdp_activation_checkpointing_offload", "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD", "false"},
    {"fsdp_ignored_modules", "FSDP_IGNORED_MODULES", nullptr}};

constexpr Renamed kParallelism[] = {
    {"parallelism_config_dp_replicate_size", "PARALLELISM_CONFIG_DP_REPLICATE_SIZE", "1"},
    {"parallelism_config_dp_shard_size", "PARALLELISM_CONFIG_DP_SHARD_SIZE", "1"},
    {"parallelism_config_tp_size", "PARALLELISM_CONFIG_TP_SIZE", "1"},
    {"parallelism_config_cp_size", "PARALLELISM_CONFIG_CP_SIZE", "1"},
    {"parallelism_config_cp_backend", "PARALLELISM_CONFIG_CP_BACKEND", "torch"},
    {"parallelism_config_sp_size", "PARALLELISM_CONFIG_SP_SIZE", "1"},
    {"parallelism_config_sp_backend", "PARALLELISM_CONFIG_SP_BACKEND", "deepspeed"}};

template <size_t kCount>
void Rename(const AccelerateConfig& config, const std::string& section,
            const Renamed (&table)[kCount], Variables& variables) {
  for (const Renamed& row : table) {
    const AccelerateSetting* setting = config.Find(section + std::string(row.setting));
    if (setting != nullptr || row.missing != nullptr) {
      variables[row.variable] = setting != nullptr ? setting->text : row.missing;
    }
  }
}

void AddFsdp(const AccelerateConfig& config, Variables& variables) {
  variables["ACCELERATE_USE_FSDP"] = "true";
  Rename(config, "fsdp_config.", kFsdp, variables);
  // The only one whose case does not stay.
  variables["FSDP_RESHARD_AFTER_FORWARD"] =
      InLowerCase(config.Text("fsdp_config.fsdp_reshard_after_forward", "true"));
}

void AddParallelism(const AccelerateConfig& config, Variables& variables) {
  const std::string section = "parallelism_config.";
  const std::string prefix = section + "parallelism_config_";
  variables["ACCELERATE_USE_PARALLELISM_CONFIG"] = "true";
  Rename(config, section, kParallelism, variables);
  if (config.Number(prefix + "cp_size").value_or(1) > 1) {
    variables["PARALLELISM_CONFIG_CP_COMM_STRATEGY"] =
        config.Text(prefix + "cp_comm_strategy", "allgather");
  }
  if (config.Number(prefix + "sp_size").value_or(1) > 1) {
    variables["PARALLELISM_CONFIG_SP_SEQ_LENGTH"] = config.Text(prefix + "sp_seq_length", "None");
    variables["PARALLELISM_CONFIG_SP_SEQ_LENGTH_IS_VARIABLE"] =
        PythonBool(config.Flag(prefix + "sp_seq_length_is_variable", true));
    variables["PARALLELISM_CONFIG_SP_ATTN_IMPLEMENTATION"] =
        config.Text(prefix + "sp_attn_implementation", "sdpa");
  }
}

void AddDynamo(const AccelerateConfig& config, Variables& variables) {
  const std::string prefix = "dynamo_config.dynamo_";
  const std::string name = "ACCELERATE_DYNAMO_";
  variables[name + "BACKEND"] = config.Word(prefix + "backend", "NO");
  variables[name + "MODE"] = config.Text(prefix + "mode", "default");
  variables[name + "USE_FULLGRAPH"] = PythonBool(config.Flag(prefix + "use_fullgraph", false));
  variables[name + "USE_DYNAMIC"] = PythonBool(config.Flag(prefix + "use_dynamic", false));
  variables[name + "USE_REGIONAL_COMPILATION"] =
      PythonBool(config.Flag(prefix + "use_regional_compilation", false));
}

void AddSimple(const AccelerateConfig& config, Variables& variables) {
  const bool uses_cpu = config.Flag("use_cpu", false);
  variables["ACCELERATE_USE_CPU"] = PythonBool(uses_cpu);
  if (uses_cpu) {
    variables["KMP_AFFINITY"] = "granularity=fine,compact,1,0";
    variables["KMP_BLOCKTIME"] = "1";
  }
}

}  // namespace

bool IsSimpleLaunch(const AccelerateConfig& config) {
  const std::string type = config.Word("distributed_type", "NO");
  return type == "NO" || type == "MULTI_CPU";
}

std::map<std::string, std::string> AccelerateEnvironment(const AccelerateConfig& config) {
  Variables variables;
  if (config.Flag("debug", false)) {
    variables["ACCELERATE_DEBUG_MODE"] = "true";
  }
  if (const std::string gpus = config.Text("gpu_ids", "all"); gpus != "all") {
    variables["CUDA_VISIBLE_DEVICES"] = gpus;
  }
  variables["ACCELERATE_MIXED_PRECISION"] = InLowerCase(config.Text("mixed_precision", "no"));
  AddDynamo(config, variables);
  if (IsSimpleLaunch(config)) {
    AddSimple(config, variables);
    return variables;
  }
  if (config.Word("distributed_type", "") == "FSDP") {
    AddFsdp(config, variables);
  }
  if (config.HasSection("parallelism_config")) {
    AddParallelism(config, variables);
  }
  return variables;
}

}  // namespace fsdprun
