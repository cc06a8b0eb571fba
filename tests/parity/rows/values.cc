#include "tests/parity/rows/values.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>
#include <fsdp/wrap.h>

#include <algorithm>
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

/// Of {"param": dtype, "reduce": dtype, "output": dtype, "cast_forward_inputs": bool,
/// "full_precision_in_eval": bool}.
fsdp::MixedPrecisionPolicy policy_of(const json& policy) {
  return {.param_dtype = optional_dtype(policy, "param"),
          .reduce_dtype = optional_dtype(policy, "reduce"),
          .output_dtype = optional_dtype(policy, "output"),
          .cast_forward_inputs = policy.value("cast_forward_inputs", true),
          .full_precision_in_eval = policy.value("full_precision_in_eval", false)};
}

/// Of a bool or a number of ranks.
fsdp::ReshardAfterForward reshard_of(const json& value) {
  return value.is_boolean() ? fsdp::ReshardAfterForward(value.get<bool>())
                            : fsdp::ReshardAfterForward(value.get<int64_t>());
}

/// Of {end of a parameter's name: dimension}.
fsdp::ShardPlacementFn placement_of(const json& dims) {
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

/// FSDP1's.
fsdp::FullyShardOptions with_prefetch(fsdp::FullyShardOptions how, const json& options) {
  how.forward_prefetch = options.value("forward_prefetch", how.forward_prefetch);
  if (options.contains("backward_prefetch")) {
    const json& name = options.at("backward_prefetch");
    how.backward_prefetch = name == "BACKWARD_POST" ? fsdp::BackwardPrefetch::kBackwardPost
                                                    : fsdp::BackwardPrefetch::kBackwardPre;
    if (name.is_null()) {
      how.backward_prefetch.reset();
    }
  }
  if (options.value("limit_all_gathers", false)) {
    how.limit_all_gathers = 2;
  }
  return how;
}

fsdp::WrapPolicy wrap_policy_of(RowModel& model, const json& options) {
  if (options.at("policy") == "always") {
    return fsdp::always_wrap_policy();
  }
  if (options.at("policy") == "size") {
    return fsdp::size_based_auto_wrap_policy({.min_num_params = options.at("min").get<int64_t>()});
  }
  std::vector<const torch::nn::Module*> chosen;
  for (const json& name : options.at("names")) {
    chosen.push_back(model.named_modules()[name.get<std::string>()].get());
  }
  return fsdp::lambda_auto_wrap_policy([chosen](const torch::nn::Module& module) {
    return std::find(chosen.begin(), chosen.end(), &module) != chosen.end();
  });
}

}  // namespace

at::ScalarType dtype_of(const std::string& name) {
  static const std::map<std::string, at::ScalarType> dtypes = {{"float16", at::kHalf},
                                                               {"bfloat16", at::kBFloat16},
                                                               {"float32", at::kFloat},
                                                               {"float64", at::kDouble}};
  return dtypes.at(name);
}

fsdp::FullyShardOptions options_of(const json& unit, const json& shard, const RowModel& model,
                                   const std::shared_ptr<fsdp::DeviceMesh>& mesh) {
  fsdp::FullyShardOptions how;
  how.mesh = mesh;
  how.mp_policy = policy_of(unit.value("precision", json::object()));
  if (unit.contains("reshard")) {
    how.reshard_after_forward = reshard_of(unit.at("reshard"));
  }
  if (unit.contains("placement")) {
    how.shard_placement_fn = placement_of(unit.at("placement"));
  }
  if (unit.value("offload", false)) {
    how.offload_policy = fsdp::CPUOffloadPolicy{.pin_memory = false};
  }
  for (const auto& [name, parameter] : parameters_of(model, unit.value("ignored", json::array()))) {
    how.ignored_params.push_back(parameter);
  }
  return with_prefetch(std::move(how), shard);
}

std::vector<std::pair<std::string, at::Tensor>> parameters_of(const RowModel& model,
                                                              const json& prefixes) {
  std::vector<std::pair<std::string, at::Tensor>> found;
  for (const auto& [name, parameter] : unique_parameters(model)) {
    if (std::any_of(prefixes.begin(), prefixes.end(), [&name = name](const json& prefix) {
          return name.starts_with(prefix.get<std::string>());
        })) {
      found.emplace_back(name, parameter);
    }
  }
  return found;
}

std::vector<std::shared_ptr<torch::nn::Module>> modules_named(RowModel& model, const json& names) {
  std::vector<std::shared_ptr<torch::nn::Module>> modules;
  for (const json& name : names) {
    modules.push_back(name == "" ? model.shared_from_this()
                                 : model.named_modules()[name.get<std::string>()]);
  }
  return modules;
}

std::vector<std::string> members_of(const std::map<std::string, fsdp::FSDPModule>& units) {
  std::vector<std::string> lines;
  for (const auto& [name, unit] : units) {
    for (const auto& [parameter, leaf] : unit.named_parameters()) {
      lines.push_back(name + ": " + parameter);
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

std::vector<std::string> planned_units(const std::shared_ptr<RowModel>& model,
                                       const json& options) {
  std::vector<std::string> lines;
  for (const fsdp::WrappedUnit& unit : fsdp::planned_units(
           std::static_pointer_cast<torch::nn::Module>(model), wrap_policy_of(*model, options),
           modules_named(*model, options.value("ignored", json::array())))) {
    if (unit.numel > 0) {
      lines.push_back(unit.name + ' ' + std::to_string(unit.numel));
    }
  }
  std::sort(lines.begin(), lines.end());
  return lines;
}

void expect_no_cast(RowModel& model, at::ScalarType dtype) {
  std::string said;
  try {
    model.to(dtype == at::kFloat ? at::kDouble : at::kFloat);
  } catch (const c10::Error& error) {
    said = error.what_without_backtrace();
  }
  TORCH_CHECK(said.find(" is sharded now") != std::string::npos,
              "a sharded module's to() is not refused: ", said);
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
