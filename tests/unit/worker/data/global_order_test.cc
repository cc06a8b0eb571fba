#include "worker/data/global_order.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace fsdprun::worker {
namespace {

/// The samples of a run whose world has `worlds[i]` ranks in its i-th batch of `global_batch`
/// samples, in the order of the run. Precondition: each divides it.
std::vector<SampleRef> SamplesOf(const GlobalOrder& order, int64_t global_batch,
                                 const std::vector<int64_t>& worlds) {
  std::vector<SampleRef> samples;
  DataCursor cursor;
  for (const int64_t world : worlds) {
    const SampleOrder ranks(order.epoch_samples(), world, EpochEnd::kJoin);
    cursor = ranks.Normalize(cursor);
    for (int64_t round = 0; round < global_batch / world; ++round) {
      for (int64_t rank = 0; rank < world; ++rank) {
        samples.push_back(order.At(ranks.Take(cursor, rank)));
      }
      cursor = ranks.NextRound(cursor);
    }
  }
  return samples;
}

TEST(GlobalOrderTest, AnyWorldSizesTakeTheSameSamplesInTheSameOrder) {
  for (const bool is_shuffled : {false, true}) {
    for (const std::vector<double>& weights :
         std::vector<std::vector<double>>{{}, {0.7, 0.2, 0.1}}) {
      const std::vector<int64_t> counts =
          weights.empty() ? std::vector<int64_t>{17} : std::vector<int64_t>{5, 17, 40};
      const GlobalOrder order({counts, weights, is_shuffled, 9});
      const std::vector<SampleRef> expected = SamplesOf(order, 12, std::vector<int64_t>(10, 1));
      for (const int64_t world : {2, 3, 4, 6, 12}) {
        EXPECT_EQ(SamplesOf(order, 12, std::vector<int64_t>(10, world)), expected) << world;
      }
      EXPECT_EQ(SamplesOf(order, 12, {2, 2, 3, 12, 1, 4, 4, 6, 3, 2}), expected);
    }
  }
}

TEST(GlobalOrderTest, EveryEpochHasEveryWindowOnce) {
  for (const bool is_shuffled : {false, true}) {
    const GlobalOrder order({{13}, {}, is_shuffled, 4});
    std::set<std::vector<int64_t>> orders;
    for (int64_t epoch = 0; epoch < 4; ++epoch) {
      std::vector<int64_t> windows;
      for (int64_t i = 0; i < 13; ++i) {
        windows.push_back(order.At({epoch, i}).window);
      }
      EXPECT_EQ(std::set<int64_t>(windows.begin(), windows.end()).size(), 13u);
      orders.insert(windows);
    }
    EXPECT_EQ(orders.size(), is_shuffled ? 4u : 1u);
  }
}

TEST(GlobalOrderTest, EverySourceOfAMixtureHasEpochsOfItsOwn) {
  const std::vector<int64_t> counts = {5, 8};
  const GlobalOrder order({counts, {3, 1}, true, 4});
  std::map<int64_t, std::vector<int64_t>> windows;
  for (int64_t sample = 0; sample < 160; ++sample) {
    const SampleRef at = order.At({0, sample});
    windows[at.source].push_back(at.window);
  }
  EXPECT_EQ(windows[0].size(), 120u);
  EXPECT_EQ(windows[1].size(), 40u);
  for (auto& [source, taken] : windows) {
    const auto count = static_cast<size_t>(counts[static_cast<size_t>(source)]);
    for (size_t begin = 0; begin < taken.size(); begin += count) {
      const std::set<int64_t> epoch(taken.begin() + static_cast<int64_t>(begin),
                                    taken.begin() + static_cast<int64_t>(begin + count));
      EXPECT_EQ(epoch.size(), count);
      EXPECT_LT(*epoch.rbegin(), static_cast<int64_t>(count));
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
