// What is gathered ahead, and when.

#include <fsdp/counters.h>
#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/chain_model.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Of the second step, the first that is predicted.
void expect_step(const FullyShardOptions& options, const Events& expected) {
  run_ranks(2, [&](Rank& rank) {
    ObservedChain chain(rank, 3, options);
    chain.step();
    EXPECT_EQ(chain.step(), expected);
  });
}

const Events kForwardOneAhead = {"gather root", "gather 0", "gather 1", "run 0",
                                 "gather 2",    "run 1",    "run 2"};

Events joined(Events first, const Events& then) {
  first.insert(first.end(), then.begin(), then.end());
  return first;
}

TEST(PrefetchTest, BackwardPreIsTheDefault) {
  const Events expected =
      joined(kForwardOneAhead, {"gather 2", "head", "gather 1", "reduce 2", "gather 0", "reduce 1",
                                "reduce 0", "reduce root"});
  expect_step({}, expected);
  expect_step({.backward_prefetch = BackwardPrefetch::kBackwardPre}, expected);
}

TEST(PrefetchTest, BackwardPostGathersWhenTheUnitBeforeIsFreed) {
  expect_step({.backward_prefetch = BackwardPrefetch::kBackwardPost},
              joined(kForwardOneAhead, {"head", "gather 2", "gather 1", "reduce 2", "gather 0",
                                        "reduce 1", "reduce 0", "reduce root"}));
}

TEST(PrefetchTest, NoBackwardPrefetchGathersWhatRuns) {
  expect_step({.backward_prefetch = std::nullopt},
              joined(kForwardOneAhead, {"head", "gather 2", "reduce 2", "gather 1", "reduce 1",
                                        "gather 0", "reduce 0", "reduce root"}));
}

TEST(PrefetchTest, NoForwardPrefetchGathersWhatRuns) {
  expect_step(
      {.forward_prefetch = false},
      {"gather root", "gather 0", "run 0", "gather 1", "run 1", "gather 2", "run 2", "gather 2",
       "head", "gather 1", "reduce 2", "gather 0", "reduce 1", "reduce 0", "reduce root"});
}

TEST(PrefetchTest, BackwardPostHoldsOneUnitLess) {
  run_ranks(2, [](Rank& rank) {
    const auto slots = [&rank](std::optional<BackwardPrefetch> when) {
      Sharded setup = make(rank, {}, {.backward_prefetch = when, .forward_prefetch = false});
      for (int step = 0; step < 2; ++step) {
        loss(setup.model, step, rank.rank).backward();
      }
      return runtime_counters(setup.root).slot_allocations;
    };
    EXPECT_EQ(slots(BackwardPrefetch::kBackwardPre) - slots(BackwardPrefetch::kBackwardPost), 1);
    EXPECT_EQ(slots(BackwardPrefetch::kBackwardPost), slots(std::nullopt));
  });
}

TEST(PrefetchTest, AListIsTakenAsItIsUnlessThereIsALimit) {
  run_ranks(2, [](Rank& rank) {
    const auto forward = [&rank](std::optional<int64_t> limit) {
      ObservedChain chain(rank, 4, {.limit_all_gathers = limit});
      const std::vector<FSDPModule> units = chain.root.units();
      chain.root.set_modules_to_forward_prefetch({units.begin() + 1, units.end()});
      const at::NoGradGuard no_grad;
      chain.forward();
      chain.take();
      chain.forward();
      return chain.take();
    };
    const Events rest = {"run 0", "run 1", "run 2", "run 3"};
    EXPECT_EQ(forward(std::nullopt),
              joined({"gather root", "gather 0", "gather 1", "gather 2", "gather 3"}, rest));
    EXPECT_EQ(forward(3), (Events{"gather root", "gather 0", "gather 1", "gather 2", "run 0",
                                  "run 1", "gather 3", "run 2", "run 3"}));
    EXPECT_EQ(forward(1), (Events{"gather root", "gather 0", "gather 1", "run 0", "gather 2",
                                  "run 1", "gather 3", "run 2", "run 3"}));
  });
}

TEST(PrefetchTest, UnitsThatDoNotRunAreNotGatheredAheadWithoutEnd) {
  run_ranks(2, [](Rank& rank) {
    ObservedChain chain(rank, 3, {});
    const std::vector<FSDPModule> units = chain.root.units();
    chain.step();
    // Gathered for nothing, and freed by the backward as if it had run.
    chain.root.set_modules_to_forward_prefetch({units[3], units[1]});
    std::vector<Unit<Link>> links = chain.model->links;
    chain.model->links.pop_back();
    EXPECT_EQ(chain.step(),
              (Events{"gather root", "gather 2", "gather 0", "gather 1", "run 0", "run 1",
                      "gather 1", "head", "gather 0", "reduce 1", "reduce 0", "reduce root"}));
    chain.model->links = links;
    chain.root.set_modules_to_forward_prefetch({});
    chain.step();
    EXPECT_EQ(chain.step().size(), 15u);
  });
}

TEST(PrefetchTest, ALimitBelowOneIsRefused) {
  run_ranks(1, [](Rank& rank) {
    const auto link = std::make_shared<Link>(1.0);
    EXPECT_NE(refusal([&] {
                fully_shard(link, {.mesh = rank.mesh, .limit_all_gathers = 0});
              }).find("limit_all_gathers is 0"),
              std::string::npos);
    EXPECT_FALSE(fsdp_module(*link));
  });
}

}  // namespace
}  // namespace fsdp::testing
