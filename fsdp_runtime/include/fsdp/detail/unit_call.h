#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/Exception.h>
#include <fsdp/export.h>
#include <fsdp/visit_tensors.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {
class ModuleState;
}

namespace fsdp::detail {

/// nullptr when the module is not sharded.
FSDP_API std::shared_ptr<ModuleState> find_state(const torch::nn::Module& module);
/// How often a tensor's memory had been modified when a unit was given it.
struct InputVersion {
  c10::VariableVersion counter;
  uint32_t version;
  bool is_modified() const { return counter.current_version() != version; }
};

template <class M>
class ShardedBase;
template <class M>
std::true_type runs_hooks(const ShardedBase<M>*);
std::false_type runs_hooks(const void*);
/// Whether M is an fsdp::Sharded, whose forward() is a call already.
template <class M>
inline constexpr bool kRunsHooks = decltype(runs_hooks(static_cast<const M*>(nullptr)))::value;

/// Runs before forward; may replace the tensors (input cast, identity node for post-backward).
/// Order is the order of the call's tensor arguments, flattened. Returns the versions of those that
/// forward must not modify.
/// `module` is the one that is called, of those that are the unit.
FSDP_API std::vector<InputVersion> pre_forward(ModuleState& state, const torch::nn::Module& module,
                                               std::vector<at::Tensor*>& inputs);
/// Runs after forward, with what pre_forward has returned; hooks the outputs for pre-backward.
FSDP_API void post_forward(ModuleState& state, const torch::nn::Module& module,
                           std::vector<at::Tensor*>& outputs,
                           const std::vector<InputVersion>& inputs);
/// Runs if forward, pre_forward or post_forward throws: reshards the unit.
FSDP_API void abandon_forward(ModuleState& state) noexcept;

/// The histories of tensors, to tell afterwards which are new.
class FSDP_API Histories {
 public:
  explicit Histories(const std::vector<at::Tensor*>& tensors);
  /// Of `tensors`, those that were made since.
  std::vector<at::Tensor*> made_since(const std::vector<at::Tensor*>& tensors) const;

 private:
  std::vector<std::shared_ptr<void>> nodes_;
};

/// Of what forward has returned nothing, or a type that is not known. Errors: TORCH_CHECK, with
/// the name of the module and the type, if there will be a backward.
FSDP_API void check_has_outputs(const ModuleState& state, const std::vector<at::Tensor*>& outputs,
                                const std::type_info& result);

/// How an argument travels if variables are lent.
template <class Arg>
using LentOrCopied = std::conditional_t<std::is_lvalue_reference_v<Arg> &&
                                            !std::is_const_v<std::remove_reference_t<Arg>>,
                                        Arg, std::decay_t<Arg>>;

template <class T>
inline constexpr bool kIsLent = std::is_lvalue_reference_v<T>;
template <class T>
inline constexpr bool kIsLent<std::reference_wrapper<T>> = true;

template <bool kWanted, class T>
void visit_if(T& value, std::vector<at::Tensor*>& out) {
  if constexpr (kWanted) {
    visit_tensors(value, out);
  }
}

/// fsdp::call() with arguments of the types Passed: T& is lent, T is this call's own.
template <class... Passed, class Body>
auto call_with(const torch::nn::Module& module, Body& body, std::type_identity_t<Passed>... args) {
  using Result = std::invoke_result_t<Body&, Passed...>;
  const std::shared_ptr<ModuleState> state = find_state(module);
  if (!state) {
    return static_cast<std::decay_t<Result>>(body(std::forward<Passed>(args)...));
  }
  std::vector<at::Tensor*> inputs;
  (visit_if<!kIsLent<Passed>>(args, inputs), ...);
  std::vector<at::Tensor*> lent;
  (visit_if<kIsLent<Passed>>(args, lent), ...);
  const Histories before(lent);
  const auto finish = [&](std::vector<at::Tensor*>& outputs, const auto& versions, bool is_known) {
    lent.clear();
    (visit_if<kIsLent<Passed>>(args, lent), ...);
    for (at::Tensor* made : before.made_since(lent)) {
      outputs.push_back(made);
    }
    if (!is_known) {
      check_has_outputs(*state, outputs, typeid(Result));
    }
    post_forward(*state, module, outputs, versions);
  };
  try {
    const std::vector<InputVersion> versions = pre_forward(*state, module, inputs);
    std::vector<at::Tensor*> outputs;
    if constexpr (std::is_void_v<Result>) {
      body(std::forward<Passed>(args)...);
      finish(outputs, versions, /*is_known=*/false);
    } else {
      std::decay_t<Result> result = body(std::forward<Passed>(args)...);
      visit_tensors(result, outputs);
      finish(outputs, versions, kIsTransparent<std::decay_t<Result>>);
      return result;
    }
  } catch (...) {
    abandon_forward(*state);
    throw;
  }
}

}  // namespace fsdp::detail
