#include "worker/data/sample_order.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
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
    const SampleOrder order(golden["samples"], world);
    for (int64_t rank = 0; rank < world; ++rank) {
      DataCursor cursor;
      for (const int64_t expected : golden["ranks"][rank]) {
        const int64_t position = order.Position(cursor, rank);
        ASSERT_EQ(golden["orders"][cursor.epoch][position].get<int64_t>(), expected)
            << golden.dump();
        cursor = order.NextRound(cursor);
      }
      EXPECT_EQ(cursor, (DataCursor{3, 0}));
    }
    ++cases;
  }
  EXPECT_EQ(cases, 60);
}

TEST(SampleOrderTest, OtherWorldSizeInMidEpochLosesAndRepeatsNothing) {
  constexpr int64_t kSamples = 24;
  std::multiset<int64_t> seen;
  DataCursor cursor;
  const auto take = [&](int64_t world, int64_t rounds) {
    const SampleOrder order(kSamples, world);
    for (; rounds > 0; --rounds) {
      for (int64_t rank = 0; rank < world; ++rank) {
        seen.insert(order.Position(cursor, rank));
      }
      cursor = order.NextRound(cursor);
    }
  };
  take(2, 3);
  take(3, 2);
  take(4, 3);
  EXPECT_EQ(cursor, (DataCursor{1, 0}));
  EXPECT_EQ(seen.size(), static_cast<size_t>(kSamples));
  EXPECT_EQ(std::set<int64_t>(seen.begin(), seen.end()).size(), static_cast<size_t>(kSamples));
}

TEST(SampleOrderTest, CursorBehindShorterDataStartsNextEpoch) {
  EXPECT_EQ(SampleOrder(10, 2).Normalize({4, 10}), (DataCursor{5, 0}));
  EXPECT_EQ(SampleOrder(10, 2).Normalize({4, 9}), (DataCursor{4, 9}));
}

TEST(SampleOrderTest, RefusesNothingToTake) {
  EXPECT_THROW(SampleOrder(0, 1), std::invalid_argument);
  EXPECT_THROW(SampleOrder(1, 0), std::invalid_argument);
}

}  // namespace
}  // namespace fsdprun::worker
