// Several roots on a rank, as the stages of a pipeline are.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/in_a_row.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// A step of two stages, each a root; returns all gradients of both.
std::vector<LocalShard> step_of(const ShardedInARow& one, const ShardedInARow& two) {
  two.model(one.model(at::ones({2, 6}))).square().sum().backward();
  std::vector<LocalShard> gradients = one.root.sharded_gradients();
  for (const LocalShard& gradient : two.root.sharded_gradients()) {
    gradients.push_back(gradient);
  }
  return gradients;
}

TEST(SeveralRootsTest, ThatShareMemoryTakeThatOfOne) {
  run_ranks(2, [](Rank& rank) {
    const ShardedInARow own_one = shard_in_a_row(rank.comm), own_two = shard_in_a_row(rank.comm);
    const ShardedInARow one = shard_in_a_row(rank.comm), two = shard_in_a_row(rank.comm);
    share_comm_ctx({one.root, two.root});
    for (int step = 0; step < 2; ++step) {
      const std::vector<LocalShard> expected = step_of(own_one, own_two);
      const std::vector<LocalShard> gradients = step_of(one, two);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::equal(gradients[i].local, expected[i].local)) << expected[i].fqn;
      }
    }
    EXPECT_EQ(runtime_counters(one.root).slot_bytes, runtime_counters(two.root).slot_bytes);
    EXPECT_LT(runtime_counters(one.root).slot_bytes, runtime_counters(own_one.root).slot_bytes +
                                                         runtime_counters(own_two.root).slot_bytes);
  });
}

TEST(SeveralRootsTest, ThatAreInUseOrNoRootsAreRefused) {
  run_ranks(2, [](Rank& rank) {
    const ShardedInARow one = shard_in_a_row(rank.comm), two = shard_in_a_row(rank.comm);
    const FSDPModule nested = fsdp_module(*one.model->first);
    EXPECT_NE(refusal([&] {
                share_comm_ctx({two.root, nested});
              }).find("is no root"),
              std::string::npos);
    EXPECT_NE(refusal([&] {
                share_comm_ctx({one.root, FSDPModule()});
              }).find("empty FSDPModule"),
              std::string::npos);
    nested.unshard();
    EXPECT_NE(refusal([&] {
                share_comm_ctx({one.root, two.root});
              }).find("before the first forward"),
              std::string::npos);
    nested.reshard();
    share_comm_ctx({one.root, two.root});
  });
}

}  // namespace
}  // namespace fsdp::testing
