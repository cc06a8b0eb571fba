// NCCL at one rank, whose collectives are real: what they give, and that they are NCCL's.

#include "tests/gpu/nccl_calls.h"
#include "tests/gpu/one_gpu.h"

namespace fsdp::gpu {
namespace {

class NcclOneRankTest : public GpuTest {};

at::Tensor values(at::ScalarType dtype) {
  return at::arange(1000, at::TensorOptions(at::kFloat).device(kGpu)).sub(500).to(dtype);
}

TEST_F(NcclOneRankTest, GathersAndBroadcastsGiveBackWhatWasSent) {
  const auto group = make_nccl_alone();
  const NcclCalls before = nccl_calls();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kLong}) {
    SCOPED_TRACE(dtype);
    const at::Tensor input = values(dtype);
    const at::Tensor output = at::zeros_like(input);
    group->all_gather_into(output, input, {Lane::kGather, "a shard"})->wait();
    const at::Tensor sent = input.clone();
    group->broadcast(sent, 0)->wait();
    EXPECT_TRUE(at::equal(output, input));
    EXPECT_TRUE(at::equal(sent, input));
  }
  EXPECT_EQ(nccl_calls().all_gathers - before.all_gathers, 4);
  EXPECT_EQ(nccl_calls().broadcasts - before.broadcasts, 4);
  group->barrier();
}

TEST_F(NcclOneRankTest, ReductionsOfOneRankChangeNothing) {
  const auto group = make_nccl_alone();
  const NcclCalls before = nccl_calls();
  int64_t times = 0;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMax}) {
      SCOPED_TRACE(::testing::Message() << dtype << ", operation " << static_cast<int>(op));
      const at::Tensor input = values(dtype);
      const at::Tensor output = at::zeros_like(input);
      group->reduce_scatter_into(output, input.clone(), op)->wait();
      const at::Tensor reduced = input.clone();
      group->all_reduce(reduced, op)->wait();
      EXPECT_TRUE(at::equal(output, input));
      EXPECT_TRUE(at::equal(reduced, input));
      ++times;
    }
  }
  EXPECT_EQ(nccl_calls().reduce_scatters - before.reduce_scatters, times);
  EXPECT_EQ(nccl_calls().all_reduces - before.all_reduces, times);
}

TEST_F(NcclOneRankTest, AGroupHasACommunicatorForEachLane) {
  const int64_t before = nccl_calls().communicators;
  const auto group = make_nccl_alone();
  EXPECT_EQ(group->name(), "nccl");
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(nccl_calls().communicators - before, 2);
}

TEST_F(NcclOneRankTest, AWorldOfOneMakesNoCommunicatorUnlessItIsAskedTo) {
  ProcessGroupOptions options = nccl_alone(std::chrono::minutes(1));
  options.communicates_alone = false;
  const NcclCalls before = nccl_calls();
  Training training(init_process_group(options));
  training.steps(0, 1);
  synchronize();
  EXPECT_EQ(nccl_calls().communicators, before.communicators);
  EXPECT_EQ(nccl_calls().all_gathers, before.all_gathers);
}

TEST_F(NcclOneRankTest, TrainingHasTheSameBitsWithNcclAndWithout) {
  ProcessGroupOptions options = nccl_alone(std::chrono::minutes(1));
  options.communicates_alone = false;
  for (const MixedPrecisionPolicy& policy : {MixedPrecisionPolicy{}, in_bfloat16()}) {
    std::vector<at::Tensor> expected;
    {
      Training alone(init_process_group(options), policy);
      alone.steps(0, 4);
      expected = alone.shards();
    }
    Training with_nccl(make_nccl_alone(), policy);
    with_nccl.steps(0, 4);
    expect_equal(with_nccl.shards(), expected);
  }
}

// Units that compute in another dtype are gathered at one rank as well.
TEST_F(NcclOneRankTest, AUnitThatCastsIsGatheredByNccl) {
  Training training(make_nccl_alone(), in_bfloat16());
  training.steps(0, 2);
  training.comm->clear();
  const NcclCalls before = nccl_calls();
  training.steps(3, 3);
  synchronize();
  int64_t recorded = 0;
  for (const CollectiveRecord& record : training.comm->records()) {
    if (record.operation == "all_gather") {
      EXPECT_EQ(record.dtype, "BFloat16");
      ++recorded;
    }
  }
  const auto units = static_cast<int64_t>(training.root.units().size());
  EXPECT_GE(recorded, units);
  EXPECT_EQ(nccl_calls().all_gathers - before.all_gathers, recorded);
}

TEST_F(NcclOneRankTest, EveryOperationOfAStepOfTwoRanksIsNccls) {
  const auto mirrored = std::make_shared<MirroredCollectives>(make_nccl_alone());
  Training training(mirrored);
  training.steps(0, 2);
  training.comm->clear();
  const NcclCalls before = nccl_calls();
  training.steps(3, 3);
  synchronize();
  int64_t gathers = 0, reductions = 0;
  for (const CollectiveRecord& record : training.comm->records()) {
    gathers += record.operation == "all_gather" ? 1 : 0;
    reductions += record.operation == "reduce_scatter" ? 1 : 0;
  }
  const auto units = static_cast<int64_t>(training.root.units().size());
  EXPECT_GE(gathers, 2 * units - 1);  // in forward and in backward, the root once
  EXPECT_EQ(reductions, units);
  EXPECT_EQ(nccl_calls().all_gathers - before.all_gathers, 2 * gathers);
  EXPECT_EQ(nccl_calls().reduce_scatters - before.reduce_scatters, reductions);
}

}  // namespace
}  // namespace fsdp::gpu
