#pragma once

/// @file
/// Policies that say which modules of a model become units: what torch.distributed.fsdp.wrap is in
/// Python, with its names.
///
/// ```cpp
/// fsdp::FSDPModule sharded =
///     fsdp::fully_shard(model, fsdp::transformer_auto_wrap_policy<Block>(), {.mesh = mesh});
/// ```
///
/// A policy shards any module; whether that can run is the model's part, because C++ cannot change
/// the class of a module as Python does. A unit must be called as one:
///
/// * as an fsdp::Sharded<M>, wherever it is;
/// * as a member of type fsdp::Unit<M>, or by fsdp::call();
/// * as an entry of a torch::nn::Sequential that takes one tensor and returns one.
///
/// The policy replaces entries of such Sequentials, so that modules of LibTorch need nothing else;
/// names stay.
///
/// Who calls it otherwise gets the c10::Error of a sharded parameter, which says the same.
/// WrappedUnit::runs_hooks tells before which modules are left to Unit and call().

#include <fsdp/export.h>
#include <fsdp/fully_shard.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace fsdp {

/// @addtogroup shard
/// @{

/// What a policy says of one module: no, yes, or yes with options of its own.
struct FSDP_API WrapDecision {
  /// Yes or no, with the options that fully_shard() was called with.
  // NOLINTNEXTLINE(google-explicit-constructor): what a user's function returns
  WrapDecision(bool is_wrapped) : wraps(is_wrapped) {}
  /// Yes, with these instead: a copy of the others, changed, as a rule.
  // NOLINTNEXTLINE(google-explicit-constructor)
  WrapDecision(FullyShardOptions own) : wraps(true), options(std::move(own)) {}

  bool wraps;                                ///< Whether the module becomes a unit.
  std::optional<FullyShardOptions> options;  ///< Unset: those of the call.
};

/// Which modules below a root become units. The tree is gone through from the bottom to the top.
/// Containers without a forward (torch::nn::ModuleList, ModuleDict, ParameterList, ParameterDict)
/// never become units, as nobody could call them; the modules in them do.
///
/// Must say the same on all ranks. Thread: the rank's.
class FSDP_API WrapPolicy {
 public:
  /// Of `module`, which has `numel` parameters that no unit below it has taken.
  using Wraps = std::function<WrapDecision(const torch::nn::Module& module, int64_t numel)>;
  /// Whether to look for units at and below `module`, which has `numel` parameters in all.
  using Descends = std::function<bool(const torch::nn::Module& module, int64_t numel)>;

  /// One of your own. Without `descends` all modules are looked at. Errors: TORCH_CHECK on an empty
  /// `wraps`.
  explicit WrapPolicy(Wraps wraps, Descends descends = {});
  /// See Wraps.
  WrapDecision wraps(const torch::nn::Module& module, int64_t numel) const {
    return wraps_(module, numel);
  }
  /// See Descends.
  bool descends(const torch::nn::Module& module, int64_t numel) const {
    return !descends_ || descends_(module, numel);
  }

 private:
  Wraps wraps_;
  Descends descends_;
};

/// Says whether a module is of some types.
using ModuleTypes = std::function<bool(const torch::nn::Module& module)>;

/// Modules of the types M, or derived from them, as Python's isinstance: holders
/// (torch::nn::Linear) or modules (torch::nn::LinearImpl, fsdp::Sharded<BlockImpl>). The header of
/// torch::nn::Module must be included.
template <class... M>
ModuleTypes module_types() {
  static_assert(sizeof...(M) > 0, "module_types: no type given");
  return [](const auto& module) { return (... || (module.template as<M>() != nullptr)); };
}

/// Every module is a unit (PyTorch: always_wrap_policy).
FSDP_API WrapPolicy always_wrap_policy();

/// Of size_based_auto_wrap_policy().
struct FSDP_API SizeBasedOptions {
  /// Elements.
  int64_t min_num_params = 100'000'000;
  /// No units are looked for in these, and they are none; unset: torch::nn::MultiheadAttention.
  ModuleTypes force_leaf_modules = {};
  /// None of these is a unit, but their children may be; unset: only the containers.
  ModuleTypes exclude_wrap_modules = {};
};

/// A module is a unit if it has `min_num_params` parameters or more that no unit below it has taken
/// (PyTorch: size_based_auto_wrap_policy). So what is too small joins its siblings in the module
/// around them.
FSDP_API WrapPolicy size_based_auto_wrap_policy(SizeBasedOptions options = {});

/// Every module for which `wraps(module)` is true (PyTorch: lambda_auto_wrap_policy).
FSDP_API WrapPolicy
lambda_auto_wrap_policy(std::function<bool(const torch::nn::Module& module)> wraps);

/// `decide(module)` says no, yes, or yes with options of its own (PyTorch: CustomPolicy):
///
/// ```cpp
/// fsdp::custom_policy([&](const torch::nn::Module& module) -> fsdp::WrapDecision {
///   if (&module == model->head.get()) {
///     fsdp::FullyShardOptions own = options;
///     own.reshard_after_forward = false;
///     return own;
///   }
///   return module.as<Block>() != nullptr;
/// });
/// ```
FSDP_API WrapPolicy
custom_policy(std::function<WrapDecision(const torch::nn::Module& module)> decide);

/// A module is a unit if one of the policies says so, with the options of the first that does
/// (PyTorch: _or_policy).
FSDP_API WrapPolicy or_policy(std::vector<WrapPolicy> policies);

/// Every module of the types M (PyTorch: ModuleWrapPolicy). See module_types().
template <class... M>
WrapPolicy module_wrap_policy() {
  return lambda_auto_wrap_policy(module_types<M...>());
}

/// The same under the name that FSDP1 has for it.
template <class... M>
WrapPolicy transformer_auto_wrap_policy() {
  return module_wrap_policy<M...>();
}

/// A module that a policy would make a unit.
struct FSDP_API WrappedUnit {
  std::string name;   ///< From the root: "layers.0"; "" of the root itself.
  std::string type;   ///< Of the module in C++.
  int64_t numel = 0;  ///< Elements of the parameters that it would take, each once.
  /// Whether its forward runs FSDP's hooks whoever calls it: an fsdp::Sharded, or an entry of a
  /// torch::nn::Sequential. Others must be called through fsdp::Unit or fsdp::call(). An entry must
  /// take one tensor and return one, which the types of modules do not tell: one that does not is
  /// refused with a c10::Error when the Sequential calls it.
  bool runs_hooks = false;
  /// Member by member.
  bool operator==(const WrappedUnit&) const = default;
};

/// What fully_shard() with a policy would do, without doing it: the units in the order in which it
/// would shard them, nested ones before those around them, the root last. Local. Errors: as there.
FSDP_API std::vector<WrappedUnit> planned_units(
    const std::shared_ptr<torch::nn::Module>& module, const WrapPolicy& policy,
    const std::vector<std::shared_ptr<torch::nn::Module>>& ignored_modules = {});

/// The same of the module that a torch::nn::ModuleHolder has.
template <class M>
std::vector<WrappedUnit> planned_units(
    const torch::nn::ModuleHolder<M>& module, const WrapPolicy& policy,
    const std::vector<std::shared_ptr<torch::nn::Module>>& ignored_modules = {}) {
  return planned_units(std::shared_ptr<torch::nn::Module>(module.ptr()), policy, ignored_modules);
}

/// Shards the modules below `module` that `policy` chooses, nested ones first, each as by
/// fully_shard(), and then `module` with the parameters that are left (FSDP1: auto_wrap_policy).
/// Returns the root's handle, whose units() are all of them. What has been sharded before, and all
/// in it, is left alone.
///
/// `ignored_modules`, and all in them, do not become units, and their parameters are neither
/// counted nor sharded: see FullyShardOptions::ignored_params.
///
/// Errors: TORCH_CHECK on a null module, on `module` itself or one that is not below it in
/// `ignored_modules`, and on a parameter that two units would take: names both, and nothing has
/// changed then. Those of fully_shard(), when units before may be sharded.
FSDP_API FSDPModule
fully_shard(const std::shared_ptr<torch::nn::Module>& module, const WrapPolicy& policy,
            const FullyShardOptions& options = {},
            const std::vector<std::shared_ptr<torch::nn::Module>>& ignored_modules = {});

/// The same of the module that a torch::nn::ModuleHolder has.
template <class M>
FSDPModule fully_shard(
    const torch::nn::ModuleHolder<M>& module, const WrapPolicy& policy,
    const FullyShardOptions& options = {},
    const std::vector<std::shared_ptr<torch::nn::Module>>& ignored_modules = {}) {
  return fully_shard(std::shared_ptr<torch::nn::Module>(module.ptr()), policy, options,
                     ignored_modules);
}

/// @}

}  // namespace fsdp
