// Which lane is slow does not change what is computed.

#include <gtest/gtest.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/unit/fsdp_runtime/engine/delayed_collectives.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

std::vector<at::Tensor> trained(Rank& rank, std::optional<Lane> slow) {
  if (slow) {
    // The pause is the fault: a lane that is behind compute.
    rank.comm = std::make_shared<DelayedCollectives>(
        rank.comm, *slow, [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); });
    rank.mesh = init_device_mesh(c10::kCPU, {rank.size}, {"dp_shard"}, rank.comm);
  }
  Sharded setup = make(rank, {.blocks = 5},
                       {.mesh = nullptr, .mp_policy = {at::kBFloat16, at::kFloat, std::nullopt}});
  AdamW optimizer(setup.root, {});
  for (int64_t step = 0; step < 2; ++step) {
    for (int64_t batch = 0; batch < 2; ++batch) {
      loss(setup.model, 2 * step + batch, rank.rank).backward();
    }
    clip_grad_norm_(setup.root, 0.01);
    optimizer.step();
    optimizer.zero_grad();
  }
  std::vector<at::Tensor> parameters;
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    parameters.push_back(setup.root.full_parameter(shard.fqn));
  }
  return parameters;
}

TEST(DelayedLanesTest, TrainingIsTheSameWhicheverLaneIsSlow) {
  for (const bool as_on_a_device : {false, true}) {
    run_ranks(
        2,
        [](Rank& rank) {
          Rank gathers_late = rank;
          Rank reduces_late = rank;
          const std::vector<at::Tensor> expected = trained(rank, std::nullopt);
          const std::vector<at::Tensor> late_gathers = trained(gathers_late, Lane::kGather);
          const std::vector<at::Tensor> late_reductions = trained(reduces_late, Lane::kReduce);
          for (size_t i = 0; i < expected.size(); ++i) {
            EXPECT_TRUE(at::equal(late_gathers[i], expected[i])) << "parameter " << i;
            EXPECT_TRUE(at::equal(late_reductions[i], expected[i])) << "parameter " << i;
          }
        },
        as_on_a_device);
  }
}

}  // namespace
}  // namespace fsdp::testing
