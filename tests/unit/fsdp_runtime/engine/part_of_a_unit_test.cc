// Of a unit of several modules some run, and then the others alone.

#include <fsdp/optim.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/fsdp_runtime/engine/line_chain.h"

namespace fsdp::testing {
namespace {

TEST(PartOfAUnitTest, IsReducedByItself) {
  const ChainPass first_part = [](const Unit<Chain>& model, int64_t rank) {
    model->order = {0, 1};
    chain_loss(model, rank).backward();
  };
  const ChainPass rest = [](const Unit<Chain>& model, int64_t rank) {
    model->lines[2](chain_input(rank)).square().mean().backward();
  };
  run_ranks(2, [&](Rank& rank) {
    const FullyShardOptions options{.mesh = rank.mesh};
    ShardedChain setup;
    const auto& lines = setup.model->lines;
    fully_shard(lines[0].ptr(), options);
    fully_shard({lines[1].ptr(), lines[2].ptr()}, options);
    setup.root = fully_shard(setup.model.ptr(), options);
    for (const ChainPass& pass : std::vector<ChainPass>{first_part, rest, first_part, rest}) {
      pass(setup.model, rank.rank);
      expect_gradients(rank, setup.root, chain_gradients(rank.size, pass), 1e-6);
      AdamW(setup.root, {}).zero_grad();
    }
  });
}

}  // namespace
}  // namespace fsdp::testing
