// The waits between streams that the engine relies on, on a fake device: a training step has no
// race, and has some if a kind of wait is left out (each_wait_test.cc: any).

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

class EngineOrderTest : public OnAFakeDevice, public ::testing::WithParamInterface<Case> {};

TEST_P(EngineOrderTest, TrainingHasNoRaces) {
  train(GetParam(), 3);
  EXPECT_EQ(device_.text_of_races(), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, EngineOrderTest, ::testing::ValuesIn(training_cases()),
                         [](const auto& info) { return info.param.name; });

/// A wait that is left out, and a race that is one then.
struct Rule {
  std::string name;
  Stream waiting;
  Stream awaited;
  std::string earlier;
  std::string later;
  bool is_hybrid = false;
};

void PrintTo(const Rule& rule, std::ostream* out) { *out << rule.name; }

std::vector<Rule> rules() {
  return {
      {"compute_waits_for_the_gather", kCompute, kRowGather, "on a gather lane in forward",
       "of compute in forward"},
      {"backward_waits_for_the_gather", kCompute, kRowGather, "on a gather lane in backward",
       "of compute in backward"},
      {"gather_waits_for_the_last_use_of_the_slot", kRowGather, kCompute, "of compute in forward",
       "copy_ on a gather lane in forward"},
      {"gather_waits_for_the_optimizer", kRowGather, kCompute, "of compute in the optimizer",
       "copy_ on a gather lane in forward"},
      {"reduction_waits_for_the_gradients", kRowReduce, kCompute, "of compute in backward",
       "copy_ on a reduce lane in backward"},
      {"gradients_wait_for_the_reduction_that_reads_their_slot", kCompute, kRowReduce,
       "on a reduce lane in backward", "of compute in backward"},
      {"clipping_waits_for_the_reductions", kCompute, kRowReduce, "on a reduce lane in backward",
       "of compute in clipping"},
      {"all_reduce_waits_for_the_row", kCopiesReduce, kRowReduce, "copy_ on a reduce lane",
       "mul_ on a reduce lane", true},
      {"slot_of_the_row_waits_for_the_all_reduce", kCompute, kCopiesReduce,
       "mul on a reduce lane in backward", "copy_ on a reduce lane in backward", true},
  };
}

class LeftOutWaitTest : public OnAFakeDevice, public ::testing::WithParamInterface<Rule> {};

TEST_P(LeftOutWaitTest, IsARace) {
  const Rule& rule = GetParam();
  Case test_case{.name = rule.name, .is_hybrid = rule.is_hybrid};
  test_case.config.blocks = 5;
  if (rule.is_hybrid) {
    test_case.options.mp_policy = {at::kBFloat16, std::nullopt, std::nullopt};
  }
  device_.leave_out_waits([&rule](const FakeDevice::Wait& wait) {
    return wait.waiting == rule.waiting && wait.awaited == rule.awaited;
  });
  train(test_case, 2);
  const bool is_found =
      std::any_of(device_.races().begin(), device_.races().end(), [&rule](const auto& found) {
        return found.first.earlier.find(rule.earlier) != std::string::npos &&
               found.first.later.find(rule.later) != std::string::npos;
      });
  EXPECT_TRUE(is_found) << "found only:\n" << device_.text_of_races();
}

INSTANTIATE_TEST_SUITE_P(Rules, LeftOutWaitTest, ::testing::ValuesIn(rules()),
                         [](const auto& info) { return info.param.name; });

class ChunkOrderTest : public OnAFakeDevice {};

TEST_F(ChunkOrderTest, NothingIsGatheredToASlotUntilTheParametersAreCopiedOut) {
  Case test_case{.name = "rows", .options = {.shard_placement_fn = shard_on_dim(0)}};
  test_case.config.blocks = 5;
  device_.leave_out_waits([](const FakeDevice::Wait& wait) {
    return wait.waiting == kRowGather && wait.awaited == kCompute;
  });
  train(test_case, 2);
  EXPECT_TRUE(std::any_of(
      device_.races().begin(), device_.races().end(),
      [](const auto& found) {
        return found.first.earlier.find("copy_ of compute in forward") != std::string::npos &&
               found.first.later.find("on a gather lane in forward") != std::string::npos;
      }))
      << "found only:\n"
      << device_.text_of_races();
}

/// What is in flight when something fails is waited for by who has its memory.
class FailureOrderTest : public OnAFakeDevice {
 protected:
  // One without waits of compute for the row's lane `awaited` must be noticed, one with is correct.
  template <class Train>
  void expect_race_only_without_waits_for(Stream awaited, Train train) {
    train();
    EXPECT_EQ(device_.text_of_races(), "");
    device_.stop();
    device_.start();
    device_.leave_out_waits([awaited](const FakeDevice::Wait& wait) {
      return wait.waiting == kCompute && wait.awaited == awaited;
    });
    train();
    const std::string last = awaited == kRowGather ? "in rewriting" : "the next owner";
    EXPECT_TRUE(std::any_of(
        device_.races().begin(), device_.races().end(),
        [&](const auto& found) { return found.first.later.find(last) != std::string::npos; }))
        << "found only:\n"
        << device_.text_of_races();
  }
};

TEST_F(FailureOrderTest, ShardIsNotWrittenWhileAGatherForNothingReadsIt) {
  expect_race_only_without_waits_for(kRowGather, [this] {
    Rank rank;
    rank.mesh = mesh_for({});
    Sharded setup = make(rank);
    device_.set_phase("forward");
    loss(setup.model, 0, 0);
    setup.model->blocks[1]->fail = true;  // the gather of the next one is in flight
    EXPECT_THROW(loss(setup.model, 0, 0), c10::Error);
    device_.set_phase("rewriting");
    setup.root.init_parameters(initialise);
  });
}

TEST_F(FailureOrderTest, MemoryOutlivesTheReductionsOfAModelThatIsDestroyed) {
  expect_race_only_without_waits_for(kRowReduce, [this] {
    Rank rank;
    rank.mesh = mesh_for({});
    Sharded setup = make(rank, {.checkpointing = ToyConfig::Checkpointing::kAroundUnit});
    device_.set_phase("forward");
    const at::Tensor failing = loss(setup.model, 0, 0);
    setup.model->blocks[0]->fail = true;  // its recomputation
    device_.set_phase("backward");
    EXPECT_THROW(failing.backward(), c10::Error);
    device_.set_phase("destruction");
  });
}

// NCCL keeps the order of issue between the kernels of all communicators of a device, which is a
// deadlock if ranks differ in it: also in how two communicators follow each other.
TEST(LaunchOrderTest, IsOneOnAllRanksThoughTheyUseDifferentParameters) {
  FakeDevice& device = FakeDevice::get();
  std::vector<std::vector<std::string>> launches;
  for (int64_t number = 0; number < 3; ++number) {
    device.start();
    {
      Rank rank;
      rank.mesh = mesh_for({.is_hybrid = true});
      Sharded setup = make(rank, {.blocks = 5});
      AdamW optimizer(setup.root, {});
      for (int64_t step = 0; step < 3; ++step) {
        setup.model->blocks[1]->use_spare = number == step;
        loss(setup.model, step, number).backward();
        clip_grad_norm_(setup.root, 0.01);
        optimizer.step();
        optimizer.zero_grad();
      }
    }
    launches.push_back(device.launches());
    device.stop();
  }
  EXPECT_GT(launches[0].size(), 3u * 6 * 3);  // a gather and two reductions for each unit
  EXPECT_EQ(launches[1], launches[0]);
  EXPECT_EQ(launches[2], launches[0]);
}

// As many kernels for a unit as for a parameter.
TEST(KernelCountTest, GradientsOfAUnitAreMovedAtOnce) {
  FakeDevice& device = FakeDevice::get();
  device.start();
  train({.name = "counted", .config = {.blocks = 5}}, 2);
  EXPECT_EQ(device.count("_foreach_copy_"), 2 * 6);  // five blocks and the root
  EXPECT_EQ(device.count("_foreach_norm"), 2);
  EXPECT_EQ(device.count("_foreach_add_"), 2);  // the step counts
  device.stop();
}

}  // namespace
}  // namespace fsdp::testing
