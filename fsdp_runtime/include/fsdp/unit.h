#pragma once

/// @file
/// Calling a module's forward as that of a unit.

#include <fsdp/detail/unit_call.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <utility>

namespace fsdp {

/// @addtogroup modules
/// @{

/// Calls `body(args...)` as the forward of `module`: unshards before, reshards after, registers the
/// backward hooks; returns what `body` returns, by value. For modules whose forward cannot be
/// called through a Unit, and for methods other than forward:
///
/// ```cpp
/// at::Tensor hidden = fsdp::call(*model, [&](at::Tensor x) { return model->encode(x); }, x);
/// ```
///
/// Without fully_shard() it is a plain call. All ranks that share the unit's parameters call it, in
/// the same order relative to other units. CPU: blocks the host until the parameters have arrived;
/// CUDA: the current stream waits for them.
///
/// Arguments are copied, as the hooks put other tensors in their place, and moved into `body`. If
/// `body` cannot take them so, those that were given as variables are lent: it gets the caller's
/// own. So is what is given as std::ref(). Tensors in what was lent are taken for results if `body`
/// has made them, and otherwise left alone: they are not cast, and the gradients that backward
/// hands back for them may come before the unit's parameters have theirs.
///
/// Tensors are found as `fsdp/visit_tensors.h` says. Backward begins at the results: a `body` that
/// returns nothing, or a type that is not known, and has made no tensor that can be found, is an
/// error where there will be a backward.
///
/// In mixed precision floating-point tensors of the arguments that are not lent are cast to
/// MixedPrecisionPolicy::param_dtype, and those of the result to its output_dtype.
///
/// Errors: TORCH_CHECK, with the module's name, on a forward that calls itself, on an argument that
/// `body` modifies in place although its caller still has the tensor, and as above; what `body`
/// throws, after the unit has been resharded; those of Work::wait().
template <class Body, class... Args>
auto call(const torch::nn::Module& module, Body&& body, Args&&... args) {
  if constexpr (std::is_invocable_v<Body, std::decay_t<Args>...>) {
    return detail::call_with<std::decay_t<Args>...>(module, body, std::forward<Args>(args)...);
  } else {
    return detail::call_with<detail::LentOrCopied<Args>...>(module, body,
                                                            std::forward<Args>(args)...);
  }
}

/// Typed, shared handle of a module whose call operator runs M::forward with FSDP's hooks. What is
/// registered is the module itself, so that parameter names are what they are without it
/// ("layers.0.weight"):
///
/// ```cpp
/// struct Model : torch::nn::Module {
///   explicit Model(const Config& config) {
///     register_module("layers", registered);
///     for (int64_t i = 0; i < config.layers; ++i) {
///       layers.emplace_back(std::make_shared<Block>(config));
///       registered->push_back(layers.back().ptr());
///     }
///   }
///   at::Tensor forward(at::Tensor x, const at::Tensor& cos, const at::Tensor& sin) {
///     for (const fsdp::Unit<Block>& layer : layers) {
///       x = layer(x, cos, sin);
///     }
///     return x;
///   }
///   torch::nn::ModuleList registered;
///   std::vector<fsdp::Unit<Block>> layers;
/// };
/// ```
///
/// Cheap to copy, shared ownership. Where LibTorch itself calls forward, see Sharded; M may be one.
template <class M>
class Unit {
 public:
  /// Empty: not to be called.
  Unit() = default;
  /// A handle of `module`, whether it is sharded or not.
  explicit Unit(std::shared_ptr<M> module) : module_(std::move(module)) {}

  /// Runs M::forward with these arguments as call() does, and returns what it returns, by value.
  template <class... Args>
  auto operator()(Args&&... args) const {
    M& module = *module_;
    if constexpr (detail::kRunsHooks<M>) {
      return module.forward(std::forward<Args>(args)...);
    } else {
      return call(
          module,
          [&module](auto&&... forwarded) -> decltype(module.forward(
                                             std::forward<decltype(forwarded)>(forwarded)...)) {
            return module.forward(std::forward<decltype(forwarded)>(forwarded)...);
          },
          std::forward<Args>(args)...);
    }
  }

  /// The same with another member function of M, which is then an entry point like forward:
  /// FSDP2's register_fsdp_forward_method(), without registration.
  ///
  /// ```cpp
  /// at::Tensor hidden = model.call_method(&Model::encode, tokens);
  /// ```
  template <class Method, class... Args>
  auto call_method(Method method, Args&&... args) const {
    M& module = *module_;
    return call(
        module,
        [&module,
         method](auto&&... forwarded) -> std::invoke_result_t<Method, M&, decltype(forwarded)...> {
          return std::invoke(method, module, std::forward<decltype(forwarded)>(forwarded)...);
        },
        std::forward<Args>(args)...);
  }

  /// The module's members, such as its submodules; not for calling forward.
  M* operator->() const { return module_.get(); }
  /// The module.
  M& operator*() const { return *module_; }
  /// The module, to register it or to pass it to fully_shard(); null if this is empty.
  const std::shared_ptr<M>& ptr() const { return module_; }

 private:
  std::shared_ptr<M> module_;
};

/// @}

}  // namespace fsdp
