#include "tests/parity/rows/values.h"

#include <ATen/ATen.h>

#include <map>
#include <optional>

namespace parity_rows {
namespace {

using nlohmann::json;

std::optional<at::ScalarType> optional_dtype(const json& policy, const char* name) {
  return policy.contains(name) ? std::optional(dtype_of(policy.at(name).get<std::string>()))
                               : std::nullopt;
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes = {{"float16", at::kHalf},
                                                               {"bfloat16", at::kBFloat16},
                                                               {"float32", at::kFloat},
                                                               {"float64", at::kDouble}};
  return dtypes.at(name);
}

fsdp::MixedPrecisionPolicy policy_of(const json& policy) {
  return {.param_dtype = optional_dtype(policy, "param"),
          .reduce_dtype = optional_dtype(policy, "reduce"),
          .output_dtype = optional_dtype(policy, "output"),
          .cast_forward_inputs = policy.value("cast_forward_inputs", true)};
}

at::Tensor whole_of(const fsdp::LocalShard& shard, fsdp::Collectives& group) {
  at::Tensor whole = at::zeros(shard.global_shape, shard.local.options());
  int64_t begin = 0;
  for (const fsdp::Box& box : shard.boxes) {
    at::Tensor piece = whole;
    for (size_t d = 0; d < box.sizes.size(); ++d) {
      piece = piece.narrow(static_cast<int64_t>(d), box.offsets[d], box.sizes[d]);
    }
    const int64_t numel = piece.numel();
    piece.copy_(shard.local.narrow(0, begin, numel).view(box.sizes));
    begin += numel;
  }
  group.all_reduce(whole, fsdp::ReduceOp::kSum)->wait();
  return whole;
}

fsdp::ReshardAfterForward reshard_of(const json& value) {
  return value.is_boolean() ? fsdp::ReshardAfterForward(value.get<bool>())
                            : fsdp::ReshardAfterForward(value.get<int64_t>());
}

fsdp::ShardPlacementFn placement_of(const nlohmann::json& dims) {
  return [dims](const std::string& fqn,
                const at::Tensor& /*parameter*/) -> std::optional<fsdp::ShardPlacement> {
    for (const auto& [suffix, dim] : dims.items()) {
      if (fqn.ends_with(suffix)) {
        return fsdp::ShardPlacement{dim.get<int64_t>()};
      }
    }
    return std::nullopt;
  };
}

fsdp::StateDictOptions state_options(const json& options) {
  return {.full_state_dict = options.value("full", false),
          .cpu_offload = options.value("cpu_offload", false),
          .broadcast_from_rank0 = options.value("broadcast_from_rank0", false)};
}

}  // namespace parity_rows
