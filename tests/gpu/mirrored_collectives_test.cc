#include "tests/gpu/mirrored_collectives.h"

#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::gpu {
namespace {

std::shared_ptr<Collectives> mirrored_on_cpu() {
  return std::make_shared<MirroredCollectives>(init_process_group({}));
}

TEST(MirroredCollectivesTest, PeerHasWhatThisRankHas) {
  const auto group = mirrored_on_cpu();
  const at::Tensor input = at::arange(3, at::kFloat);
  const at::Tensor gathered = at::zeros({6});
  group->all_gather_into(gathered, input, Lane::kGather)->wait();
  EXPECT_TRUE(at::equal(gathered, at::cat({input, input})));
  at::Tensor in_place = gathered.clone().fill_(7);
  group->all_gather_into(in_place, in_place.narrow(0, 0, 3), Lane::kGather)->wait();
  EXPECT_TRUE(at::equal(in_place, at::full({6}, 7.0)));
}

TEST(MirroredCollectivesTest, SumsAreDoubledAndAveragesAreNot) {
  const auto group = mirrored_on_cpu();
  const at::Tensor first = at::arange(3, at::kFloat);
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
    const at::Tensor expected = op == ReduceOp::kSum ? first * 2 : first;
    const at::Tensor output = at::zeros({3});
    group->reduce_scatter_into(output, at::cat({first, first + 9}), op, Lane::kReduce)->wait();
    EXPECT_TRUE(at::equal(output, expected)) << static_cast<int>(op);
    const at::Tensor reduced = first.clone();
    group->all_reduce(reduced, op, Lane::kReduce)->wait();
    EXPECT_TRUE(at::equal(reduced, expected)) << static_cast<int>(op);
  }
}

TEST(MirroredCollectivesTest, UnitsCommunicateAsAtTwoRanks) {
  const auto comm = std::make_shared<RecordingCollectives>(mirrored_on_cpu());
  FullyShardOptions options;
  options.mesh = init_device_mesh(c10::kCPU, {2}, {"dp_shard"}, comm);
  const testing::ToyConfig config;
  const Unit<testing::ToyModel> model = testing::make_sharded(config, options);
  const FSDPModule root = fsdp_module(*model);
  root.init_parameters(testing::initialise);
  AdamW optimizer(root, {});
  const at::Tensor tokens = testing::tokens_of(config, 0, 0);
  comm->clear();
  testing::loss_of(model(tokens), tokens).backward();
  optimizer.step();
  const auto count = [&](const std::string& operation) {
    return std::count_if(comm->records().begin(), comm->records().end(),
                         [&](const auto& record) { return record.operation == operation; });
  };
  EXPECT_EQ(count("all_gather"), 1 + 2 * config.blocks);
  EXPECT_EQ(count("reduce_scatter"), 1 + config.blocks);
}

TEST(MirroredCollectivesTest, RefusesAGroupThatIsNoMirror) {
  EXPECT_THROW(MirroredCollectives{mirrored_on_cpu()}, c10::Error);
}

}  // namespace
}  // namespace fsdp::gpu
