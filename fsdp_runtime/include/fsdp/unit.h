#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Scalar.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/ArrayRef.h>
#include <c10/util/Exception.h>
#include <fsdp/export.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace torch::nn {
class Module;
}

namespace fsdp {

class ModuleState;

namespace detail {

/// nullptr when the module is not sharded.
FSDP_API std::shared_ptr<ModuleState> find_state(const torch::nn::Module& module);
/// How often a tensor's memory had been modified when a unit was given it.
struct InputVersion {
  c10::VariableVersion counter;
  uint32_t version;
  bool is_modified() const { return counter.current_version() != version; }
};

/// Runs before forward; may replace the tensors (input cast, identity node for post-backward).
/// Order is the order of the call's tensor arguments, flattened. Returns the versions of those that
/// forward must not modify.
FSDP_API std::vector<InputVersion> pre_forward(ModuleState& state,
                                               std::vector<at::Tensor*>& inputs);
/// Runs after forward, with what pre_forward has returned; hooks the outputs for pre-backward.
FSDP_API void post_forward(ModuleState& state, std::vector<at::Tensor*>& outputs,
                           const std::vector<InputVersion>& inputs);
/// Runs if forward, pre_forward or post_forward throws: reshards the unit.
FSDP_API void abandon_forward(ModuleState& state) noexcept;

/// Collects the tensors inside an argument or a result: tensors, numbers, enums, strings and the
/// small values of ATen, and optionals, pairs, arrays, vectors, tuples, variants and maps of such,
/// however nested. Overload it (found by ADL) for your own structs: what it does not know it does
/// not pass by, since a tensor in it would silently have no backward hooks.
inline void visit_tensors(at::Tensor& tensor, std::vector<at::Tensor*>& out);
template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& out);
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& out);
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& out);
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& out);
template <class T, size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& out);
template <class... T>
void visit_tensors(std::variant<T...>& value, std::vector<at::Tensor*>& out);
template <class K, class T>
void visit_tensors(std::map<K, T>& values, std::vector<at::Tensor*>& out);
template <class K, class T>
void visit_tensors(std::unordered_map<K, T>& values, std::vector<at::Tensor*>& out);
template <class T>
requires(std::is_arithmetic_v<T> ||
         std::is_enum_v<T>) void visit_tensors(T&, std::vector<at::Tensor*>&);
template <class T>
requires(std::is_arithmetic_v<T>) void visit_tensors(c10::ArrayRef<T>&, std::vector<at::Tensor*>&);
inline void visit_tensors(c10::Scalar&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(c10::Device&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(at::Generator&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::nullptr_t&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::monostate&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::string&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::string_view&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(const char*&, std::vector<at::Tensor*>&) {}
inline void visit_tensors(std::nullopt_t&, std::vector<at::Tensor*>&) {}

/// What no other overload takes: this conversion is the last choice.
struct UnknownType {
  template <class T>
  UnknownType(T&) {  // NOLINT(google-explicit-constructor)
    static_assert(sizeof(T) == 0,
                  "an argument or a result of a unit's forward is of a type whose tensors cannot "
                  "be found; declare void visit_tensors(YourType&, std::vector<at::Tensor*>&) in "
                  "the type's namespace (see <fsdp/unit.h>)");
  }
};
inline void visit_tensors(UnknownType, std::vector<at::Tensor*>&) {}

inline void visit_tensors(at::Tensor& tensor, std::vector<at::Tensor*>& out) {
  if (tensor.defined()) {
    out.push_back(&tensor);
  }
}
template <class T>
void visit_tensors(std::optional<T>& value, std::vector<at::Tensor*>& out) {
  if (value) {
    visit_tensors(*value, out);
  }
}
template <class T>
void visit_tensors(std::vector<T>& values, std::vector<at::Tensor*>& out) {
  if constexpr (!std::is_same_v<T, bool>) {  // whose elements are bits
    for (T& value : values) {
      visit_tensors(value, out);
    }
  }
}
template <class... T>
void visit_tensors(std::tuple<T...>& values, std::vector<at::Tensor*>& out) {
  std::apply([&out](auto&... value) { (visit_tensors(value, out), ...); }, values);
}
template <class A, class B>
void visit_tensors(std::pair<A, B>& values, std::vector<at::Tensor*>& out) {
  visit_tensors(values.first, out);
  visit_tensors(values.second, out);
}
template <class T, size_t N>
void visit_tensors(std::array<T, N>& values, std::vector<at::Tensor*>& out) {
  for (T& value : values) {
    visit_tensors(value, out);
  }
}
template <class... T>
void visit_tensors(std::variant<T...>& value, std::vector<at::Tensor*>& out) {
  std::visit([&out](auto& held) { visit_tensors(held, out); }, value);
}
template <class K, class T>
void visit_tensors(std::map<K, T>& values, std::vector<at::Tensor*>& out) {
  for (auto& [key, value] : values) {
    visit_tensors(value, out);
  }
}
// In an order that is the same wherever the map was filled in the same way, and no other is needed.
template <class K, class T>
void visit_tensors(std::unordered_map<K, T>& values, std::vector<at::Tensor*>& out) {
  for (auto& [key, value] : values) {
    visit_tensors(value, out);
  }
}
template <class T>
requires(std::is_arithmetic_v<T> ||
         std::is_enum_v<T>) void visit_tensors(T&, std::vector<at::Tensor*>&) {}
template <class T>
requires(std::is_arithmetic_v<T>) void visit_tensors(c10::ArrayRef<T>&, std::vector<at::Tensor*>&) {
}

}  // namespace detail

/// Calls `body(args...)` as the forward of `module`: unshards before, reshards after, registers the
/// backward hooks. For modules whose forward cannot be called through Unit<M>. Without fully_shard
/// it is a plain call.
template <class Body, class... Args>
auto call(const torch::nn::Module& module, Body&& body, Args... args) {
  using detail::visit_tensors;
  std::shared_ptr<ModuleState> state = detail::find_state(module);
  if (!state) {
    return std::forward<Body>(body)(std::move(args)...);
  }
  static_assert(!std::is_void_v<std::invoke_result_t<Body, Args...>>,
                "the forward of a unit must return what it has computed: backward begins there");
  std::vector<at::Tensor*> inputs;
  (visit_tensors(args, inputs), ...);
  try {
    const std::vector<detail::InputVersion> versions = detail::pre_forward(*state, inputs);
    auto result = std::forward<Body>(body)(std::move(args)...);
    std::vector<at::Tensor*> outputs;
    visit_tensors(result, outputs);
    detail::post_forward(*state, outputs, versions);
    return result;
  } catch (...) {
    detail::abandon_forward(*state);
    throw;
  }
}

/// Typed, shared handle of a module whose call operator runs M::forward with FSDP's hooks. Register
/// the module itself
/// (`register_module(name, unit.ptr())`), so that parameter names are unchanged:
///
///   layers.emplace_back(std::make_shared<Block>(config));
///   register_module("layers." ..., layers.back().ptr());
///   ...
///   x = layers[i](x, cos, sin);
template <class M>
class Unit {
 public:
  Unit() = default;
  explicit Unit(std::shared_ptr<M> module) : module_(std::move(module)) {}

  template <class... Args>
  auto operator()(Args&&... args) const {
    M& module = *module_;
    return call(
        module,
        [&module](auto&&... forwarded) {
          return module.forward(std::forward<decltype(forwarded)>(forwarded)...);
        },
        std::decay_t<Args>(std::forward<Args>(args))...);
  }

  M* operator->() const { return module_.get(); }
  M& operator*() const { return *module_; }
  const std::shared_ptr<M>& ptr() const { return module_; }

 private:
  std::shared_ptr<M> module_;
};

/// An M whose forward() runs M::forward with FSDP's hooks, for where LibTorch itself calls
/// forward():
///
///   torch::nn::Sequential model;
///   model->push_back(std::make_shared<fsdp::Sharded<BlockImpl>>(config));
///
/// Names of parameters, submodules and options are M's, and until fully_shard() is called with it,
/// it computes as M does. M::forward must be public and not overloaded, and loses its default
/// arguments; a copy by clone() is refused. The hooks are not run by who calls it as an M, through
/// a std::shared_ptr<M> or M's ModuleHolder.
template <class M, class Forward = decltype(&M::forward)>
class Sharded;

namespace detail {

/// What Sharded has of M.
template <class M>
class ShardedBase : public M {
 public:
  using M::M;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& /*device*/ = std::nullopt) const override {
    TORCH_CHECK(false, "fsdp::Sharded: ", this->name(),
                " cannot be cloned; make another one and load its parameters");
  }
};

}  // namespace detail

template <class M, class Owner, class Result, class... Args>
class Sharded<M, Result (Owner::*)(Args...)> : public detail::ShardedBase<M> {
 public:
  using detail::ShardedBase<M>::ShardedBase;

  Result forward(Args... args) {
    return call(
        *this,
        [this](auto&&... forwarded) -> Result {
          return M::forward(std::forward<decltype(forwarded)>(forwarded)...);
        },
        std::decay_t<Args>(std::forward<Args>(args))...);
  }
};

template <class M, class Owner, class Result, class... Args>
class Sharded<M, Result (Owner::*)(Args...) const> : public detail::ShardedBase<M> {
 public:
  using detail::ShardedBase<M>::ShardedBase;

  Result forward(Args... args) const {
    return call(
        *this,
        [this](auto&&... forwarded) -> Result {
          return M::forward(std::forward<decltype(forwarded)>(forwarded)...);
        },
        std::decay_t<Args>(std::forward<Args>(args))...);
  }
};

}  // namespace fsdp
