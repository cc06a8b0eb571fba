// FSDPModule::set_post_optim_event() on a fake device: the first gathers wait for the optimizer,
// and not for what has been issued behind it.

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/custom_comm.h>
#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

std::shared_ptr<c10::Event> event_now() {
  auto event = std::make_shared<c10::Event>(FakeDevice::device().type());
  event->record(
      c10::impl::VirtualGuardImpl(FakeDevice::device().type()).getStream(FakeDevice::device()));
  return event;
}

/// Trains, with the event behind each step and work behind that.
void train_with_event(const Case& test_case) {
  FakeDevice& device = FakeDevice::get();
  Sharded setup = sharded_for(test_case);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  for (int step = 0; step < 3; ++step) {
    train_step(test_case, setup, optimizers, step);
    setup.root.set_post_optim_event(event_now());
    device.set_phase("unrelated work");
    at::ones({8}).add_(1);
  }
}

class PostOptimEventTest : public ::testing::Test {
 protected:
  void SetUp() override { device_.start(); }
  void TearDown() override { device_.stop(); }

  /// Whether the first gather of the root is behind what compute has done last before it. There is
  /// no other race.
  bool is_behind_unrelated_work(bool has_event);

  FakeDevice& device_ = FakeDevice::get();
};

/// Reads, where it is issued, what somebody has written on the compute stream.
struct ReadingGather : AllGather {
  WorkPtr run(at::Tensor output, at::Tensor input, Collectives& group, Issue issue) override {
    if (unrelated.defined()) {
      FakeDevice::get().set_phase("the first gather");
      unrelated.clone();
      unrelated.reset();
      FakeDevice::get().set_phase("forward");
    }
    return group.all_gather_into(output, input, std::move(issue));
  }
  at::Tensor unrelated;
};

bool PostOptimEventTest::is_behind_unrelated_work(bool has_event) {
  const Case test_case{.name = "event"};
  Sharded setup = sharded_for(test_case);
  const auto gather = std::make_shared<ReadingGather>();
  setup.root.set_custom_all_gather(gather);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  train_step(test_case, setup, optimizers, 0);
  if (has_event) {
    setup.root.set_post_optim_event(event_now());
  }
  device_.set_phase("unrelated work");
  at::Tensor unrelated = at::zeros({8});
  unrelated.add_(1);
  gather->unrelated = unrelated;
  device_.set_phase("forward");
  loss(setup.model, 1, 0);
  for (const auto& [race, times] : device_.races()) {
    EXPECT_NE(race.earlier.find("in unrelated work"), std::string::npos) << device_.text_of_races();
    EXPECT_NE(race.later.find("in the first gather"), std::string::npos) << device_.text_of_races();
  }
  return device_.races().empty();
}

TEST_F(PostOptimEventTest, TrainingHasNoRaces) {
  train_with_event({.name = "event"});
  EXPECT_EQ(device_.text_of_races(), "");
}

// Which is asked for on the stream of the first gathers, and given back while compute has read it.
TEST_F(PostOptimEventTest, MemoryOfACustomGatherHasNoRaces) {
  Case test_case{.name = "custom", .has_custom_comm = true};
  train_with_event(test_case);
  EXPECT_EQ(device_.text_of_races(), "");
}

// A caching allocator keeps what each stream has given back.
TEST_F(PostOptimEventTest, TheFirstGathersOfAllStepsAreOnOneStream) {
  const Case test_case{.name = "event"};
  Sharded setup = sharded_for(test_case);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  const int64_t before = device_.new_stream();
  for (int step = 0; step < 3; ++step) {
    train_step(test_case, setup, optimizers, step);
    setup.root.set_post_optim_event(event_now());
  }
  EXPECT_EQ(device_.new_stream() - before, 2);
}

TEST_F(PostOptimEventTest, TheFirstGatherDoesNotWaitForWhatIsBehindTheEvent) {
  EXPECT_FALSE(is_behind_unrelated_work(/*has_event=*/true));
}

TEST_F(PostOptimEventTest, WithoutAnEventItWaits) {
  EXPECT_TRUE(is_behind_unrelated_work(/*has_event=*/false));
}

// An event from before the step does not put the gather behind it.
TEST_F(PostOptimEventTest, AnEventAheadOfSomebodysOwnOptimizerIsARace) {
  const Case test_case{.name = "event"};
  Sharded setup = sharded_for(test_case);
  forward_and_backward(test_case, setup, 0);
  setup.root.set_post_optim_event(event_now());
  device_.set_phase("the optimizer");
  for (const LocalShard& shard : setup.root.sharded_parameters()) {
    at::Tensor local = shard.local;
    local.add_(1);
  }
  device_.set_phase("forward");
  loss(setup.model, 1, 0);
  EXPECT_NE(device_.text_of_races().find("in the optimizer"), std::string::npos);
}

// The event is void then.
TEST_F(PostOptimEventTest, WhatLibfsdpDoesBehindTheEventIsNoRace) {
  using Between = std::function<void(Sharded&, Optimizers&)>;
  const std::map<std::string, Between> all = {
      {"a step", [](Sharded&, Optimizers& optimizers) { optimizers.front()->step(); }},
      {"new values", [](Sharded& setup, Optimizers&) { setup.root.init_parameters(initialise); }},
      {"a use of a unit",
       [](Sharded& setup, Optimizers&) {
         const FSDPModule unit = fsdp_module(*setup.model->blocks[1]);
         unit.unshard();
         setup.model->blocks[1]->up.detach().sum();
         unit.reshard();
       }},
      {"a call of a unit",
       [](Sharded& setup, Optimizers&) {
         const at::NoGradGuard no_grad;
         setup.model->blocks[1](at::ones({2, 3, setup.model->config.width}));
       }},
  };
  for (const auto& [name, between] : all) {
    SCOPED_TRACE(name);
    device_.stop();
    device_.start();
    const Case test_case{.name = "event"};
    Sharded setup = sharded_for(test_case);
    Optimizers optimizers = optimizers_for(test_case, setup.root);
    train_step(test_case, setup, optimizers, 0);
    forward_and_backward(test_case, setup, 1);
    setup.root.set_post_optim_event(event_now());
    device_.set_phase(name);
    between(setup, optimizers);
    device_.set_phase("forward");
    loss(setup.model, 2, 0);
    EXPECT_EQ(device_.text_of_races(), "");
  }
}

// It was gathered ahead of the event.
TEST_F(PostOptimEventTest, AUnitThatIsReshardedBehindTheEventIsNoRace) {
  const Case test_case{.name = "event"};
  Sharded setup = sharded_for(test_case);
  forward_and_backward(test_case, setup, 0);
  const FSDPModule unit = fsdp_module(*setup.model->blocks[1]);
  unit.unshard();
  setup.root.set_post_optim_event(event_now());
  device_.set_phase("the use");
  setup.model->blocks[1]->up.detach().sum();
  unit.reshard();
  device_.set_phase("forward");
  loss(setup.model, 1, 0);
  EXPECT_EQ(device_.text_of_races(), "");
}

// Which is when rows are copied out of the memory that they were gathered to, and that is given
// back.
TEST_F(PostOptimEventTest, AGatherThatIsWaitedForBehindTheEventIsNoRace) {
  const Case test_case{.name = "event", .options = {.shard_placement_fn = shard_on_dim(0)}};
  Sharded setup = sharded_for(test_case);
  forward_and_backward(test_case, setup, 0);
  UnshardHandle gather = fsdp_module(*setup.model->blocks[1]).unshard_async();
  setup.root.set_post_optim_event(event_now());
  device_.set_phase("the wait");
  gather.wait();
  device_.set_phase("forward");
  loss(setup.model, 1, 0);
  EXPECT_EQ(device_.text_of_races(), "");
}

// The other root's gathers are ordered behind the event alone, which knows nothing of this one's.
TEST_F(PostOptimEventTest, RootsThatShareMemoryHaveNoRaces) {
  const Case test_case{.name = "event"};
  for (const bool is_set_late : {false, true}) {
    device_.stop();
    device_.start();
    const std::shared_ptr<DeviceMesh> mesh = mesh_for(test_case);
    Sharded first = sharded_for(test_case, mesh);
    Sharded second = sharded_for(test_case, mesh);
    share_comm_ctx({first.root, second.root});
    Optimizers of_first = optimizers_for(test_case, first.root);
    Optimizers of_second = optimizers_for(test_case, second.root);
    train_step(test_case, first, of_first, 0);
    train_step(test_case, second, of_second, 0);
    const std::shared_ptr<c10::Event> event = event_now();
    first.root.set_post_optim_event(event);
    if (!is_set_late) {
      second.root.set_post_optim_event(event);
    }
    device_.set_phase("forward of one");
    loss(first.model, 2, 0);
    if (is_set_late) {
      second.root.set_post_optim_event(event);
    }
    device_.set_phase("forward of the other");
    loss(second.model, 2, 0);
    EXPECT_EQ(device_.text_of_races(), "");
  }
}

TEST_F(PostOptimEventTest, AnEventThatHasNotBeenRecordedIsRefused) {
  Sharded setup = sharded_for({.name = "event"});
  const auto event = std::make_shared<c10::Event>(FakeDevice::device().type());
  const std::string said = refusal([&] { setup.root.set_post_optim_event(event); });
  EXPECT_NE(said.find("set_post_optim_event: the event has not been recorded"), std::string::npos)
      << said;
  EXPECT_EQ(event.use_count(), 1);
  setup.root.set_post_optim_event(nullptr);
}

TEST_F(PostOptimEventTest, IsUsedOnce) {
  const Case test_case{.name = "event"};
  Sharded setup = sharded_for(test_case);
  Optimizers optimizers = optimizers_for(test_case, setup.root);
  train_step(test_case, setup, optimizers, 0);
  const std::shared_ptr<c10::Event> event = event_now();
  setup.root.set_post_optim_event(event);
  EXPECT_EQ(event.use_count(), 2);
  forward_and_backward(test_case, setup, 1);
  EXPECT_EQ(event.use_count(), 1);
  device_.set_phase("the optimizer");
  optimizers.front()->step();
  device_.set_phase("forward");
  loss(setup.model, 2, 0);
  EXPECT_EQ(device_.text_of_races(), "");
}

}  // namespace
}  // namespace fsdp::testing
