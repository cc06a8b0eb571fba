#pragma once

// What a case says in JSON as libfsdp's options, and shards as whole tensors.

#include <fsdp/collectives.h>
#include <fsdp/fully_shard.h>
#include <fsdp/state_dict.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace parity_rows {

/// "float16", "bfloat16", "float32" or "float64".
at::ScalarType dtype_of(const std::string& name);
/// Of {"param": dtype, "reduce": dtype, "output": dtype, "cast_forward_inputs": bool}.
fsdp::MixedPrecisionPolicy policy_of(const nlohmann::json& policy);
/// Of a bool or a number of ranks.
fsdp::ReshardAfterForward reshard_of(const nlohmann::json& value);
/// Of {end of a parameter's name: dimension}.
fsdp::ShardPlacementFn placement_of(const nlohmann::json& dims);
/// Of {"full": bool, "cpu_offload": bool, "broadcast_from_rank0": bool}.
fsdp::StateDictOptions state_options(const nlohmann::json& options);

/// By FSDP2's name without "set_": {"what": name, "value": value, "recurse": bool}.
void set_option(const fsdp::FSDPModule& unit, const nlohmann::json& options);

/// From the parts of all ranks of the group, which all call it: by one operation for each dtype.
std::vector<at::Tensor> wholes_of(const std::vector<fsdp::LocalShard>& shards,
                                  fsdp::Collectives& group);

}  // namespace parity_rows
