// Orders of streams and events that are wrong on purpose, on a fake device, which finds a race in
// each; the same training without it has none. Some mistakes are looked at for several races: 18
// for 22. (each_wait_test.cc leaves out each single wait; these are whole mistakes, of a kind that
// somebody could make.)

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/faulty_collectives.h"
#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

/// A mistake, and a race that is one then.
struct BrokenOrder {
  std::string name;
  Case test_case;
  std::string operation = "";  // of the group, with the fault
  Fault fault = Fault::kNone;
  FakeDevice::Leaves leaves_out = nullptr;  // of the engine
  std::string earlier;
  std::string later;
  bool clips = false;  // which reads the gradients ahead of the optimizer
};

void PrintTo(const BrokenOrder& order, std::ostream* out) { *out << order.name; }

using Parameters = std::map<std::string, at::Tensor>;

/// Two steps. Returns whole parameters.
Parameters train_with(const BrokenOrder& order) {
  FakeDevice& device = FakeDevice::get();
  const auto mesh = mesh_for(order.test_case, [&order] {
    return std::make_shared<FaultyCollectives>(2, order.operation, order.fault);
  });
  Sharded setup = sharded_for(order.test_case, mesh);
  Optimizers optimizers = optimizers_for(order.test_case, setup.root);
  for (int64_t step = 0; step < 2; ++step) {
    forward_and_backward(order.test_case, setup, step);
    if (order.clips) {
      device.set_phase("clipping");
      clip_grad_norm_(setup.root, 0.01);
    }
    device.set_phase("the optimizer");
    optimizers.front()->step();
    optimizers.front()->zero_grad();
  }
  device.set_phase("the end");
  Parameters parameters;
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    parameters[shard.fqn] = setup.root.full_parameter(shard.fqn).clone();
  }
  return parameters;
}

Case blocks_case() {
  Case test_case{.name = "blocks"};
  test_case.config.blocks = 5;  // more than there are slots
  return test_case;
}

Case hybrid_case() {
  Case test_case = blocks_case();
  test_case.name = "hybrid";
  test_case.is_hybrid = true;
  test_case.options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  return test_case;
}

/// Gradients are copied out of what was reduced.
Case bfloat16_sums_case() {
  Case test_case = blocks_case();
  test_case.name = "bfloat16_sums";
  test_case.options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  return test_case;
}

/// Parameters are copied out of what was gathered.
Case rows_case() {
  Case test_case = blocks_case();
  test_case.name = "rows";
  test_case.options.shard_placement_fn = shard_on_dim(0);
  return test_case;
}

Case offload_case() {
  Case test_case = blocks_case();
  test_case.name = "offload";
  test_case.options.offload_policy = CPUOffloadPolicy{};
  return test_case;
}

Case offload_microbatches_case() {
  Case test_case = offload_case();
  test_case.name = "offload_microbatches";
  test_case.microbatches = 2;
  test_case.reduces_each_in_its_row = true;
  return test_case;
}

FakeDevice::Leaves waits_of(int64_t waiting, int64_t awaited) {
  return [=](const FakeDevice::Wait& wait) {
    return wait.waiting == waiting && wait.awaited == awaited;
  };
}

bool is_of_the_host(const FakeDevice::Wait& wait) { return wait.waiting == FakeDevice::kHost; }

constexpr char kGatherInForward[] = "copy_ on a gather lane in forward";
constexpr char kGatherInBackward[] = "copy_ on a gather lane in backward";
constexpr char kReduceInBackward[] = "on a reduce lane in backward";

std::vector<BrokenOrder> orders_of_gathers() {
  return {
      {.name = "forward_does_not_wait_for_its_gather",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kIsNotWaitedFor,
       .earlier = kGatherInForward,
       .later = "of compute in forward"},
      {.name = "gather_is_recorded_before_it_is_launched",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kRecordedTooEarly,
       .earlier = kGatherInForward,
       .later = "of compute in forward"},
      {.name = "backward_does_not_wait_for_its_gather",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kIsNotWaitedFor,
       .earlier = kGatherInBackward,
       .later = "of compute in backward"},
      {.name = "gather_into_a_slot_that_forward_reads",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kAheadOfTheCaller,
       .earlier = "of compute in forward",
       .later = kGatherInForward},
      {.name = "gather_into_a_slot_that_backward_reads",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kAheadOfTheCaller,
       .earlier = "of compute in backward",
       .later = kGatherInBackward},
      {.name = "gather_of_a_shard_that_the_optimizer_writes",
       .test_case = blocks_case(),
       .operation = "all_gather",
       .fault = Fault::kAheadOfTheCaller,
       .earlier = "of compute in the optimizer",
       .later = kGatherInForward},
      {.name = "copy_out_ahead_of_its_gather",
       .test_case = rows_case(),
       .operation = "all_gather",
       .fault = Fault::kIsNotWaitedFor,
       .earlier = kGatherInForward,
       .later = "copy_ of compute in forward"},
      {.name = "gather_into_a_slot_that_is_copied_out",
       .test_case = rows_case(),
       .operation = "all_gather",
       .fault = Fault::kAheadOfTheCaller,
       .earlier = "copy_ of compute in forward",
       .later = kGatherInForward},
  };
}

std::vector<BrokenOrder> orders_of_reductions() {
  return {
      {.name = "reduction_ahead_of_backwards_kernels",
       .test_case = blocks_case(),
       .operation = "reduce_scatter",
       .fault = Fault::kAheadOfTheCaller,
       .earlier = "of compute in backward",
       .later = kReduceInBackward},
      {.name = "reduction_is_recorded_before_it_is_launched",
       .test_case = blocks_case(),
       .operation = "reduce_scatter",
       .fault = Fault::kRecordedTooEarly,
       .earlier = kReduceInBackward,
       .later = "of compute in the optimizer"},
      {.name = "optimizer_ahead_of_the_reductions",
       .test_case = blocks_case(),
       .operation = "reduce_scatter",
       .fault = Fault::kIsNotWaitedFor,
       .earlier = kReduceInBackward,
       .later = "of compute in the optimizer"},
      {.name = "clipping_ahead_of_the_reductions",
       .test_case = blocks_case(),
       .operation = "reduce_scatter",
       .fault = Fault::kIsNotWaitedFor,
       .earlier = kReduceInBackward,
       .later = "of compute in clipping",
       .clips = true},
      {.name = "gradients_into_a_slot_that_a_reduction_reads",
       .test_case = blocks_case(),
       .leaves_out = waits_of(kCompute, kRowReduce),
       .earlier = kReduceInBackward,
       .later = "of compute in backward"},
      {.name = "copy_out_ahead_of_its_reduction",
       .test_case = bfloat16_sums_case(),
       .operation = "stage",
       .fault = Fault::kOnTheOtherLane,
       .earlier = kReduceInBackward,
       .later = "on a gather lane in backward"},
      {.name = "all_reduce_of_copies_ahead_of_the_reduction_in_the_row",
       .test_case = hybrid_case(),
       .operation = "all_reduce",
       .fault = Fault::kAheadOfItsInput,
       .earlier = "copy_ on a reduce lane in backward",
       .later = "mul_ on a reduce lane in backward"},
      {.name = "reduction_into_a_slot_that_the_copies_all_reduce",
       .test_case = hybrid_case(),
       .leaves_out = waits_of(kCompute, kCopiesReduce),
       .earlier = "mul on a reduce lane in backward",
       .later = "copy_ on a reduce lane in backward"},
      {.name = "memory_is_given_back_while_a_reduction_uses_it",
       .test_case = blocks_case(),
       .leaves_out = waits_of(kCompute, kRowReduce),
       .earlier = kReduceInBackward,
       .later = "the next owner of compute"},
  };
}

std::vector<BrokenOrder> orders_of_offload() {
  return {
      {.name = "host_reads_gradients_that_have_not_arrived",
       .test_case = offload_case(),
       .leaves_out = is_of_the_host,
       .earlier = "copy_ on a reduce lane in backward",
       .later = "of the host in clipping",
       .clips = true},
      {.name = "host_adds_gradients_that_have_not_arrived",
       .test_case = offload_microbatches_case(),
       .leaves_out = is_of_the_host,
       .earlier = "copy_ on a reduce lane in backward",
       .later = "add_ of the host in backward"},
      {.name = "optimizer_writes_shards_that_are_on_their_way_to_the_device",
       .test_case = offload_case(),
       .leaves_out = is_of_the_host,
       .earlier = kGatherInBackward,
       .later = "of the host in the optimizer"},
      {.name = "gradients_leave_for_the_host_ahead_of_their_reduction",
       .test_case = offload_case(),
       .operation = "stage",
       .fault = Fault::kOnTheOtherLane,
       .earlier = "copy_ on a reduce lane in backward",
       .later = kGatherInBackward},
      {.name = "memory_is_given_back_while_gradients_leave_it_for_the_host",
       .test_case = offload_case(),
       .leaves_out = [](const FakeDevice::Wait& wait) { return wait.waiting <= kCompute; },
       .earlier = "copy_ on a reduce lane in backward",
       .later = "the next owner of compute"},
  };
}

class BrokenOrderTest : public OnAFakeDevice, public ::testing::WithParamInterface<BrokenOrder> {
 protected:
  bool has_race(const std::string& earlier, const std::string& later) const {
    return std::any_of(device_.races().begin(), device_.races().end(), [&](const auto& found) {
      return found.first.earlier.find(earlier) != std::string::npos &&
             found.first.later.find(later) != std::string::npos;
    });
  }
};

TEST_P(BrokenOrderTest, IsNoticed) {
  device_.leave_out_waits(GetParam().leaves_out);
  train_with(GetParam());
  EXPECT_TRUE(has_race(GetParam().earlier, GetParam().later)) << "found only:\n"
                                                              << device_.text_of_races();
}

const auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Gathers, BrokenOrderTest, ::testing::ValuesIn(orders_of_gathers()), kName);
INSTANTIATE_TEST_SUITE_P(Reductions, BrokenOrderTest, ::testing::ValuesIn(orders_of_reductions()),
                         kName);
INSTANTIATE_TEST_SUITE_P(Offload, BrokenOrderTest, ::testing::ValuesIn(orders_of_offload()), kName);

class UnbrokenOrderTest : public OnAFakeDevice, public ::testing::WithParamInterface<Case> {};

TEST_P(UnbrokenOrderTest, HasNothingToBeNoticed) {
  for (const bool clips : {false, true}) {
    train_with({.name = "unbroken", .test_case = GetParam(), .clips = clips});
    EXPECT_EQ(device_.text_of_races(), "") << "clips " << clips;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, UnbrokenOrderTest,
                         ::testing::Values(blocks_case(), hybrid_case(), bfloat16_sums_case(),
                                           rows_case(), offload_case(),
                                           offload_microbatches_case()),
                         kName);

bool are_equal_and_finite(const Parameters& a, const Parameters& b) {
  return std::all_of(a.begin(), a.end(), [&b](const Parameters::value_type& one) {
    return one.second.equal(b.at(one.first)) && one.second.isfinite().all().item<bool>();
  });
}

// Both are on one lane, so that no wait is missing, and there is no race; but what is copied out
// has not been summed up, which only what is trained shows.
TEST_F(OnAFakeDevice, ACopyOutThatIsLaunchedBeforeItsReductionTrainsSomethingElse) {
  BrokenOrder order{.name = "late", .test_case = bfloat16_sums_case()};
  const Parameters expected = train_with(order);
  ASSERT_TRUE(are_equal_and_finite(expected, train_with(order)));
  order.operation = "reduce_scatter";
  order.fault = Fault::kBehindItsStage;
  EXPECT_FALSE(are_equal_and_finite(expected, train_with(order)));
}

}  // namespace
}  // namespace fsdp::testing
