#include "worker/data/sample_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

std::string RunSamplerScript() {
  const char* python = std::getenv("FSDPRUN_PYTHON");
  const char* script = std::getenv("FSDPRUN_SAMPLER_SCRIPT");
  if (python == nullptr || script == nullptr) {
    return "";
  }
  FILE* pipe = popen((std::string(python) + " " + script).c_str(), "re");
  std::string output;
  std::array<char, 4096> chunk;
  while (const size_t count = fread(chunk.data(), 1, chunk.size(), pipe)) {
    output.append(chunk.data(), count);
  }
  return pclose(pipe) == 0 ? output : "";
}

TEST(SampleOrderTest, EqualsTorchDistributedSamplerOverEpochs) {
  if (std::getenv("FSDPRUN_PYTHON") == nullptr) {
    GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
  }
  const std::string output = RunSamplerScript();
  ASSERT_FALSE(output.empty()) << "the reference did not run";
  int cases = 0;
  for (size_t begin = 0; begin < output.size(); begin = output.find('\n', begin) + 1) {
    const auto golden =
        nlohmann::json::parse(output.substr(begin, output.find('\n', begin) - begin));
    const int64_t world = golden["world"];
    const SampleOrder order(golden["samples"], world,
                            golden["drop_last"] == true ? EpochEnd::kDrop : EpochEnd::kPad);
    for (int64_t rank = 0; rank < world; ++rank) {
      DataCursor cursor;
      int64_t rounds = 0;
      for (const int64_t expected : golden["ranks"][rank]) {
        const DataCursor at = order.Take(cursor, rank);
        ASSERT_EQ(golden["orders"][at.epoch][at.offset].get<int64_t>(), expected) << golden.dump();
        ASSERT_EQ(order.After(rounds++), cursor);
        cursor = order.NextRound(cursor);
      }
      EXPECT_EQ(cursor, (DataCursor{3, 0}));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 104);
}

/// Takes `rounds` rounds of `world` ranks, and counts each sample.
void TakeRounds(int64_t samples, int64_t world, EpochEnd end, int64_t rounds, DataCursor& cursor,
                std::vector<DataCursor>& taken) {
  const SampleOrder order(samples, world, end);
  cursor = order.Normalize(cursor);
  for (; rounds > 0; --rounds) {
    for (int64_t rank = 0; rank < world; ++rank) {
      taken.push_back(order.Take(cursor, rank));
    }
    cursor = order.NextRound(cursor);
  }
}

TEST(SampleOrderTest, OtherWorldSizeInMidEpochLosesAndRepeatsNothing) {
  for (const EpochEnd end : {EpochEnd::kPad, EpochEnd::kDrop, EpochEnd::kJoin}) {
    std::vector<DataCursor> taken;
    DataCursor cursor;
    TakeRounds(24, 2, end, 3, cursor, taken);
    TakeRounds(24, 3, end, 2, cursor, taken);
    TakeRounds(24, 4, end, 3, cursor, taken);
    EXPECT_EQ(cursor, (DataCursor{1, 0}));
    ASSERT_EQ(taken.size(), 24u);
    for (int64_t i = 0; i < 24; ++i) {
      EXPECT_EQ(taken[static_cast<size_t>(i)], (DataCursor{0, i}));
    }
  }
}

// All sizes up to 9 and all pairs of worlds: whatever the worlds, and whenever they change, sample
// k of the run is sample k % n of epoch k / n.
TEST(SampleOrderTest, JoinedEpochsAreOneSequenceAtAnyWorldSizes) {
  for (int64_t samples = 1; samples <= 9; ++samples) {
    for (int64_t first = 1; first <= 7; ++first) {
      for (int64_t second = 1; second <= 7; ++second) {
        for (int64_t rounds = 0; rounds <= 5; ++rounds) {
          std::vector<DataCursor> taken;
          DataCursor cursor;
          TakeRounds(samples, first, EpochEnd::kJoin, rounds, cursor, taken);
          EXPECT_EQ(cursor, SampleOrder(samples, first, EpochEnd::kJoin).After(rounds));
          TakeRounds(samples, second, EpochEnd::kJoin, 4, cursor, taken);
          ASSERT_EQ(taken.size(), static_cast<size_t>(rounds * first + 4 * second));
          for (size_t k = 0; k < taken.size(); ++k) {
            const auto place = static_cast<int64_t>(k);
            ASSERT_EQ(taken[k], (DataCursor{place / samples, place % samples}))
                << samples << " samples, " << first << " then " << second << " ranks";
          }
        }
      }
    }
  }
}

// The rest of an epoch after a change of the world: nothing of it is lost with kPad, and fewer than
// the ranks are repeated or, with kDrop, left out.
TEST(SampleOrderTest, EpochsEndAsDistributedSamplersAfterAChangeOfTheWorld) {
  for (const EpochEnd end : {EpochEnd::kPad, EpochEnd::kDrop}) {
    for (int64_t samples = 7; samples <= 16; ++samples) {
      for (int64_t first = 1; first <= 7; ++first) {
        for (int64_t second = 1; second <= 7; ++second) {
          std::vector<DataCursor> taken;
          DataCursor cursor;
          TakeRounds(samples, first, end, 1, cursor, taken);
          while (SampleOrder(samples, second, end).Normalize(cursor).epoch == 0) {
            TakeRounds(samples, second, end, 1, cursor, taken);
          }
          std::map<int64_t, int> times;
          for (const DataCursor& one : taken) {
            ++times[one.offset];
          }
          const auto distinct = static_cast<int64_t>(times.size());
          const auto repeated = static_cast<int64_t>(taken.size()) - distinct;
          EXPECT_LT(repeated, end == EpochEnd::kPad ? std::max(first, second) : 1);
          EXPECT_LT(samples - distinct, end == EpochEnd::kPad ? 1 : std::max(first, second));
        }
      }
    }
  }
}

TEST(SampleOrderTest, CursorBehindShorterDataStartsNextEpoch) {
  for (const EpochEnd end : {EpochEnd::kPad, EpochEnd::kJoin}) {
    EXPECT_EQ(SampleOrder(10, 2, end).Normalize({4, 10}), (DataCursor{5, 0}));
    EXPECT_EQ(SampleOrder(10, 2, end).Normalize({4, 9}), (DataCursor{4, 9}));
  }
  EXPECT_EQ(SampleOrder(10, 2, EpochEnd::kDrop).Normalize({4, 9}), (DataCursor{5, 0}));
  EXPECT_EQ(SampleOrder(10, 2, EpochEnd::kDrop).Normalize({4, 8}), (DataCursor{4, 8}));
}

TEST(SampleOrderTest, RefusesNothingToTake) {
  EXPECT_THROW(SampleOrder(0, 1), std::invalid_argument);
  EXPECT_THROW(SampleOrder(1, 0), std::invalid_argument);
  EXPECT_THROW(SampleOrder(3, 4, EpochEnd::kDrop), std::invalid_argument);
}

}  // namespace
}  // namespace fsdprun::worker
