#pragma once

/// @file
/// FSDP1's sharding strategies, as options of fully_shard().

#include <fsdp/collectives.h>
#include <fsdp/export.h>
#include <fsdp/fully_shard_options.h>

#include <cstdint>
#include <memory>

namespace fsdp {

/// @addtogroup shard
/// @{

/// FSDP1's ShardingStrategy.
enum class ShardingStrategy {
  kFullShard,        ///< All ranks divide parameters, gradients and optimizer states (ZeRO-3).
  kShardGradOp,      ///< The same, but parameters stay gathered until after backward (ZeRO-2).
  kNoShard,          ///< Every rank holds a copy of everything: data parallel.
  kHybridShard,      ///< kFullShard within each node; the nodes hold copies.
  kHybridShardZero2  ///< kShardGradOp within each node; the nodes hold copies.
};

/// Mesh and options of `strategy` for the ranks of `world`, or without one for those of
/// default_process_group(). To be made once, and passed for each unit:
///
/// ```cpp
/// const auto options = fsdp::sharding_options(fsdp::ShardingStrategy::kHybridShard, world, 8);
/// for (const auto& block : *model->blocks) {
///   fsdp::fully_shard(block, options);
/// }
/// fsdp::FSDPModule sharded = fsdp::fully_shard(model, options);
/// ```
///
/// `ranks_per_node`: with the hybrid strategies, how many ranks with consecutive numbers each node
/// has (LOCAL_WORLD_SIZE of torchrun); not used by others. The root's parameters stay gathered
/// until after backward, as in FSDP1. Collective over `world`, and blocks the host, with all
/// strategies but the first two. Errors: TORCH_CHECK if `ranks_per_node` does not divide the number
/// of ranks; those of init_device_mesh().
FSDP_API FullyShardOptions sharding_options(ShardingStrategy strategy,
                                            std::shared_ptr<Collectives> world = nullptr,
                                            int64_t ranks_per_node = 0);

/// @}

}  // namespace fsdp
