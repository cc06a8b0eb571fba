#include <fsdp/device_mesh.h>
#include <fsdp/sharding_strategy.h>

#include <optional>
#include <utility>

#include "fsdp_runtime/src/comm/worlds.h"

namespace fsdp {

FullyShardOptions sharding_options(ShardingStrategy strategy, std::shared_ptr<Collectives> world,
                                   int64_t ranks_per_node) {
  if (!world) {
    world = Worlds::get().only("sharding_options");
  }
  const int64_t ranks = world->size();
  const bool is_hybrid =
      strategy == ShardingStrategy::kHybridShard || strategy == ShardingStrategy::kHybridShardZero2;
  TORCH_CHECK(!is_hybrid || (ranks_per_node >= 1 && ranks % ranks_per_node == 0),
              "sharding_options: a hybrid strategy with ", ranks_per_node,
              " ranks per node, in a world of ", ranks,
              "; a divisor of that expected, such as LOCAL_WORLD_SIZE");
  const bool frees =
      strategy == ShardingStrategy::kFullShard || strategy == ShardingStrategy::kHybridShard;
  FullyShardOptions options;
  if (!frees) {
    options.reshard_after_forward = false;
  }
  const c10::DeviceType device = world->device().type();
  if (is_hybrid || strategy == ShardingStrategy::kNoShard) {
    const int64_t shards = is_hybrid ? ranks_per_node : 1;
    options.mesh = init_device_mesh(device, {ranks / shards, shards}, {"dp_replicate", "dp_shard"},
                                    std::move(world));
  } else {
    options.mesh = init_device_mesh(device, {ranks}, {"dp_shard"}, std::move(world));
  }
  return options;
}

}  // namespace fsdp
