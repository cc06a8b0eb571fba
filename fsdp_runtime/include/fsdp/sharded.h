#pragma once

#include <c10/core/Device.h>
#include <c10/util/Exception.h>
#include <fsdp/unit.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace fsdp {
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

}  // namespace detail

/// An M whose forward() runs M::forward with FSDP's hooks, for where LibTorch itself calls
/// forward():
///
///   torch::nn::Sequential model;
///   model->push_back(std::make_shared<fsdp::Sharded<BlockImpl>>(config));
///
/// Names of parameters, submodules and options are M's, and until fully_shard() is called with it,
/// it computes as M does. M::forward must be public and not overloaded, and loses its default
/// arguments (those of FORWARD_HAS_DEFAULT_ARGS stay, where LibTorch calls it); a copy by clone()
/// is refused. The hooks are not run by who calls it as an M, through a std::shared_ptr<M> or M's
/// ModuleHolder. What forward declares as a reference that it may write is lent to it, everything
/// else is copied, as by call().
template <class M>
class Sharded : public detail::ShardedForward<M, decltype(&M::forward)> {
 public:
  using detail::ShardedForward<M, decltype(&M::forward)>::ShardedForward;
};

}  // namespace fsdp
