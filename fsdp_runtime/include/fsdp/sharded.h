#pragma once

/// @file
/// Modules that LibTorch itself may call as units.

#include <fsdp/detail/sharded_forward.h>

namespace fsdp {

/// @addtogroup modules
/// @{

/// An M whose forward() runs M::forward with FSDP's hooks, so that it can be called as any module,
/// also by LibTorch's own containers. M may be a module of your own or one of torch::nn:
///
/// ```cpp
/// struct BlockImpl : torch::nn::Module { ... torch::Tensor forward(torch::Tensor x); };
/// // instead of TORCH_MODULE(Block)
/// using Block = torch::nn::ModuleHolder<fsdp::Sharded<BlockImpl>>;
/// using Linear = torch::nn::ModuleHolder<fsdp::Sharded<torch::nn::LinearImpl>>;
///
/// struct ModelImpl : torch::nn::Module {
///   Linear head = register_module("head", Linear(32, 10));
///   torch::nn::ModuleList blocks = register_module("blocks", torch::nn::ModuleList());
///   // blocks->push_back(Block(32)) ...
///   torch::Tensor forward(torch::Tensor x) {
///     for (const auto& block : *blocks) {
///       x = block->as<Block>()->forward(x);  // not as<BlockImpl>()
///     }
///     return head(x);
///   }
/// };
/// ```
///
/// Such a holder does what one of TORCH_MODULE does: `Block(32)` makes the module, `= nullptr`
/// none, `block(x)` and `block->forward(x)` run the hooks, `as<Block>()` finds it, and
/// `fully_shard(block)` shards it. Without a holder it is
/// `std::make_shared<fsdp::Sharded<BlockImpl>>(32)`, and `as<fsdp::Sharded<BlockImpl>>()`.
///
/// The constructors are M's. Names of parameters, submodules and options are M's, and until
/// fully_shard() is called with it, it computes as M does. M::forward must be public, neither
/// overloaded nor a template, and loses its default arguments (those of FORWARD_HAS_DEFAULT_ARGS
/// stay, where LibTorch calls it); what else is called as forward is what Unit and call() are for.
/// A copy by clone() is refused with a c10::Error. What forward declares as a reference that it may
/// write is lent to it, everything else is copied, as by call(), whose errors and blocking are
/// those of forward().
///
/// A Sharded is an M, and who calls it as one, by `as<BlockImpl>()` or through a
/// `std::shared_ptr<BlockImpl>`, calls M::forward without the hooks: a c10::Error with the name of
/// a parameter, once it is sharded. If M::forward is virtual, that runs the hooks, too.
template <class M>
class Sharded : public detail::ShardedForward<M, detail::ForwardOf<M>> {
 public:
  using detail::ShardedForward<M, detail::ForwardOf<M>>::ShardedForward;
};

/// @}

}  // namespace fsdp
