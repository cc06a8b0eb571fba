#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fsdp/detail/unit_call.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace fsdp::detail {

/// Tells of any module whether it is a Sharded.
struct FSDP_API RunsHooks {};

/// What Sharded has of M.
template <class M>
class ShardedBase : public M, public RunsHooks {
 public:
  using M::M;

  std::shared_ptr<torch::nn::Module> clone(
      const std::optional<c10::Device>& /*device*/ = std::nullopt) const override {
    TORCH_CHECK(false, "fsdp::Sharded: ", this->name(),
                " cannot be cloned; make another one and load its parameters");
  }
};

template <class M>
concept HasOneForward = requires {
  &M::forward;
};

/// M::forward, or one message in the place of the compiler's many.
template <class M>
constexpr auto forward_of() {
  static_assert(HasOneForward<M>,
                "fsdp::Sharded<M>: M::forward must be there, public, and neither overloaded nor a "
                "template; call such a module through fsdp::Unit<M> or fsdp::call");
  if constexpr (HasOneForward<M>) {
    return &M::forward;
  }
}
template <class M>
using ForwardOf = decltype(forward_of<M>());

/// M with a forward() of the same signature. One specialisation for each kind of member function.
template <class M, class Forward>
class ShardedForward;

template <class M, class Owner, class Result, class... Args>
class ShardedForward<M, Result (Owner::*)(Args...)> : public ShardedBase<M> {
 public:
  using ShardedBase<M>::ShardedBase;

  std::decay_t<Result> forward(Args... args) {
    const auto body = [this](LentOrCopied<Args>... passed) -> Result {
      return M::forward(std::forward<LentOrCopied<Args>>(passed)...);
    };
    return call_with<LentOrCopied<Args>...>(*this, body, std::forward<Args>(args)...);
  }
};

template <class M, class Owner, class Result, class... Args>
class ShardedForward<M, Result (Owner::*)(Args...) const> : public ShardedBase<M> {
 public:
  using ShardedBase<M>::ShardedBase;

  std::decay_t<Result> forward(Args... args) const {
    const auto body = [this](LentOrCopied<Args>... passed) -> Result {
      return M::forward(std::forward<LentOrCopied<Args>>(passed)...);
    };
    return call_with<LentOrCopied<Args>...>(*this, body, std::forward<Args>(args)...);
  }
};

template <class M, class Owner, class Result, class... Args>
class ShardedForward<M, Result (Owner::*)(Args...) noexcept>
    : public ShardedForward<M, Result (Owner::*)(Args...)> {
 public:
  using ShardedForward<M, Result (Owner::*)(Args...)>::ShardedForward;
};

template <class M, class Owner, class Result, class... Args>
class ShardedForward<M, Result (Owner::*)(Args...) const noexcept>
    : public ShardedForward<M, Result (Owner::*)(Args...) const> {
 public:
  using ShardedForward<M, Result (Owner::*)(Args...) const>::ShardedForward;
};

}  // namespace fsdp::detail
