#include "tests/parity/rows/values.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <map>
#include <optional>

namespace parity_rows {
namespace {

using nlohmann::json;

std::optional<at::ScalarType> optional_dtype(const json& policy, const char* name) {
  return policy.contains(name) ? std::optional(dtype_of(policy.at(name).get<std::string>()))
                               : std::nullopt;
}

void write_part(const fsdp::LocalShard& shard, const at::Tensor& whole) {
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

std::vector<at::Tensor> wholes_of(const std::vector<fsdp::LocalShard>& shards,
                                  fsdp::Collectives& group) {
  std::map<at::ScalarType, int64_t> numels;
  for (const fsdp::LocalShard& shard : shards) {
    numels[shard.local.scalar_type()] += c10::multiply_integers(shard.global_shape);
  }
  std::map<at::ScalarType, at::Tensor> sums;
  for (const auto& [dtype, numel] : numels) {
    sums[dtype] = at::zeros({numel}, dtype);
  }
  std::vector<at::Tensor> wholes;
  std::map<at::ScalarType, int64_t> begins;
  for (const fsdp::LocalShard& shard : shards) {
    int64_t& begin = begins[shard.local.scalar_type()];
    const int64_t numel = c10::multiply_integers(shard.global_shape);
    wholes.push_back(
        sums[shard.local.scalar_type()].narrow(0, begin, numel).view(shard.global_shape));
    write_part(shard, wholes.back());
    begin += numel;
  }
  for (const auto& [dtype, sum] : sums) {
    group.all_reduce(sum, fsdp::ReduceOp::kSum)->wait();
  }
  return wholes;
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

void set_option(const fsdp::FSDPModule& unit, const json& options) {
  using Setting = void (*)(const fsdp::FSDPModule& of, const json& value, bool recurse);
  static const std::map<std::string, Setting> settings = {
      {"requires_gradient_sync",
       [](const fsdp::FSDPModule& of, const json& value, bool recurse) {
         of.set_requires_gradient_sync(value.get<bool>(), recurse);
       }},
      {"requires_all_reduce",
       [](const fsdp::FSDPModule& of, const json& value, bool recurse) {
         of.set_requires_all_reduce(value.get<bool>(), recurse);
       }},
      {"reshard_after_forward",
       [](const fsdp::FSDPModule& of, const json& value, bool recurse) {
         of.set_reshard_after_forward(reshard_of(value), recurse);
       }},
      {"reshard_after_backward",
       [](const fsdp::FSDPModule& of, const json& value, bool recurse) {
         of.set_reshard_after_backward(value.get<bool>(), recurse);
       }},
      {"gradient_divide_factor",
       [](const fsdp::FSDPModule& of, const json& value, bool /*recurse*/) {
         of.set_gradient_divide_factor(value.get<double>());
       }},
      {"is_last_backward", [](const fsdp::FSDPModule& of, const json& value,
                              bool /*recurse*/) { of.set_is_last_backward(value.get<bool>()); }},
      {"unshard_in_backward",
       [](const fsdp::FSDPModule& of, const json& value, bool /*recurse*/) {
         of.set_unshard_in_backward(value.get<bool>());
       }},
      {"force_sum_reduction_for_comms",
       [](const fsdp::FSDPModule& of, const json& value, bool /*recurse*/) {
         of.set_force_sum_reduction_for_comms(value.get<bool>());
       }},
  };
  settings.at(options.at("what").get<std::string>())(unit, options.at("value"),
                                                     options.value("recurse", true));
}

}  // namespace parity_rows
