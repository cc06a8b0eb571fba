#include "formats/accelerate/accelerate_keys.h"

namespace fsdprun {
namespace {

using K = AccelerateKind;

constexpr int64_t kCountMax = 1 << 20;
constexpr int64_t kPortMax = 65535;
constexpr int64_t kParametersMax = int64_t{1} << 53;

constexpr std::string_view kStrategies =
    "FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2 1 2 3 4 5";

constexpr AccelerateSection kSections[] = {
    {"fsdp_config", "fsdp_", true},
    {"dynamo_config", "dynamo_", true},
    {"parallelism_config", "parallelism_config_", false},
    {"mpirun_config", "mpirun_", false},
};

}  // namespace

const std::vector<AccelerateKey>& AccelerateKeys() {
  static const std::vector<AccelerateKey> keys = {
      {"compute_environment", K::kWord, "LOCAL_MACHINE"},
      {"distributed_type", K::kWord, "NO MULTI_CPU MULTI_GPU FSDP"},
      {"num_processes", K::kNumber, "", -1, kCountMax},
      {"num_machines", K::kNumber, "", 1, kCountMax},
      {"machine_rank", K::kNumber, "", 0, kCountMax},
      {"main_process_ip", K::kText},
      {"main_process_port", K::kNumber, "", 0, kPortMax},
      {"rdzv_backend", K::kText},
      {"same_network", K::kBool},
      {"mixed_precision", K::kWord, "no fp16 bf16"},
      {"fp16", K::kBool},  // of old files
      {"use_cpu", K::kBool},
      {"debug", K::kBool},
      {"enable_cpu_affinity", K::kBool},
      {"gpu_ids", K::kText},
      {"main_training_function", K::kAny},
      {"downcast_bf16", K::kAny},
      // Of other launches; those are refused by distributed_type and mixed_precision.
      {"deepspeed_config", K::kAny},
      {"megatron_lm_config", K::kAny},
      {"fp8_config", K::kAny},
      {"mpirun_config.mpirun_hostfile", K::kText},
      {"mpirun_config.mpirun_ccl", K::kAny},
      {"tpu_name", K::kAny},
      {"tpu_zone", K::kAny},
      {"tpu_use_cluster", K::kAny},
      {"tpu_use_sudo", K::kAny},
      {"tpu_vm", K::kAny},
      {"tpu_env", K::kAny},
      {"command_file", K::kAny},
      {"commands", K::kAny},

      {"fsdp_config.fsdp_version", K::kWord, "1 2"},
      {"fsdp_config.fsdp_reshard_after_forward", K::kWordOrBool, kStrategies},
      {"fsdp_config.fsdp_sharding_strategy", K::kWord, kStrategies},
      {"fsdp_config.fsdp_offload_params", K::kBool},
      {"fsdp_config.fsdp_auto_wrap_policy", K::kWord,
       "TRANSFORMER_BASED_WRAP SIZE_BASED_WRAP NO_WRAP"},
      {"fsdp_config.fsdp_transformer_layer_cls_to_wrap", K::kText},
      {"fsdp_config.fsdp_min_num_params", K::kNumber, "", 0, kParametersMax},
      {"fsdp_config.fsdp_backward_prefetch", K::kWord,
       "BACKWARD_PRE BACKWARD_POST NO_PREFETCH 1 2"},
      {"fsdp_config.fsdp_forward_prefetch", K::kBool},
      {"fsdp_config.fsdp_state_dict_type", K::kWord,
       "FULL_STATE_DICT LOCAL_STATE_DICT SHARDED_STATE_DICT 1 2 3"},
      {"fsdp_config.fsdp_use_orig_params", K::kBool},
      {"fsdp_config.fsdp_cpu_ram_efficient_loading", K::kBool},
      {"fsdp_config.fsdp_sync_module_states", K::kBool},
      {"fsdp_config.fsdp_activation_checkpointing", K::kBool},
      {"fsdp_config.fsdp_activation_checkpointing_offload", K::kBool},
      {"fsdp_config.fsdp_ignored_modules", K::kText},

      {"dynamo_config.dynamo_backend", K::kWord,
       "NO EAGER AOT_EAGER INDUCTOR AOT_TS_NVFUSER NVPRIMS_NVFUSER CUDAGRAPHS OFI FX2TRT ONNXRT "
       "TENSORRT AOT_TORCHXLA_TRACE_ONCE TORCHXLA_TRACE_ONCE TVM HPU_BACKEND NEURON"},
      {"dynamo_config.dynamo_mode", K::kText},
      {"dynamo_config.dynamo_use_fullgraph", K::kBool},
      {"dynamo_config.dynamo_use_dynamic", K::kBool},
      {"dynamo_config.dynamo_use_regional_compilation", K::kBool},

      {"parallelism_config.parallelism_config_dp_replicate_size", K::kNumber, "", 1, kCountMax},
      {"parallelism_config.parallelism_config_dp_shard_size", K::kNumber, "", 1, kCountMax},
      {"parallelism_config.parallelism_config_tp_size", K::kNumber, "", 1, kCountMax},
      {"parallelism_config.parallelism_config_cp_size", K::kNumber, "", 1, kCountMax},
      {"parallelism_config.parallelism_config_cp_backend", K::kWord, "torch"},
      {"parallelism_config.parallelism_config_cp_comm_strategy", K::kWord, "allgather alltoall"},
      {"parallelism_config.parallelism_config_sp_size", K::kNumber, "", 1, kCountMax},
      {"parallelism_config.parallelism_config_sp_backend", K::kWord, "deepspeed"},
      {"parallelism_config.parallelism_config_sp_seq_length", K::kText},
      {"parallelism_config.parallelism_config_sp_seq_length_is_variable", K::kBool},
      {"parallelism_config.parallelism_config_sp_attn_implementation", K::kText},
  };
  return keys;
}

const AccelerateSection* FindAccelerateSection(std::string_view name) {
  for (const AccelerateSection& section : kSections) {
    if (section.name == name) {
      return &section;
    }
  }
  return nullptr;
}

const AccelerateKey* FindAccelerateKey(std::string_view name) {
  for (const AccelerateKey& key : AccelerateKeys()) {
    if (key.name == name) {
      return &key;
    }
  }
  return nullptr;
}

}  // namespace fsdprun
