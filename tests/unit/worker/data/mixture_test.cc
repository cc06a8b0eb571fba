#include "worker/data/mixture.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/unit/formats/tokens/token_bytes.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(MixtureTest, WeightsThatCannotBeCountedAreRefused) {
  const auto refusal = [](const std::vector<double>& weights) {
    return RefusalOf([&] { WholeWeights(weights); });
  };
  EXPECT_THAT(refusal({0.5, 0}), HasSubstr("weight = 0.0: expected a number above 0"));
  EXPECT_THAT(refusal({-1}), HasSubstr("weight = -1.0: expected a number above 0"));
  EXPECT_THAT(refusal({1e300}), HasSubstr("expected a number above 0 and at most 1e6"));
  EXPECT_THAT(refusal({NAN}), HasSubstr("expected a number above 0"));
  EXPECT_THAT(refusal({0.1234567}), HasSubstr("expected at most six decimals"));
  EXPECT_THAT(refusal({1e-9}), HasSubstr("expected at most six decimals"));
  EXPECT_THAT(refusal({1, 0.000001, 3}), HasSubstr("more than 2^21; round them"));
}

TEST(MixtureTest, WeightsAreTheSmallestWholeNumbers) {
  EXPECT_THAT(WholeWeights({0.7, 0.2, 0.1}), ElementsAre(7, 2, 1));
  EXPECT_THAT(WholeWeights({2, 4}), ElementsAre(1, 2));
  EXPECT_THAT(WholeWeights({0.3}), ElementsAre(1));
  EXPECT_THAT(WholeWeights({0.333333, 0.666667}), ElementsAre(333333, 666667));
}

// Every beginning of the run has of each source what its weight says, but for less than one sample;
// and each source gives its own samples one after the other.
TEST(MixtureTest, EveryBeginningHasItsShareOfEachSource) {
  const std::vector<std::vector<int64_t>> all = {
      {1}, {1, 1}, {7, 2, 1}, {1, 2, 3, 4, 5}, {97, 1, 1, 1}, {13, 17}, {1, 1, 1, 1, 1, 1, 1, 50}};
  for (const std::vector<int64_t>& weights : all) {
    const MixtureTurns turns(weights);
    const auto parts =
        static_cast<double>(std::accumulate(weights.begin(), weights.end(), int64_t{0}));
    std::vector<int64_t> taken(weights.size(), 0);
    for (int64_t sample = 0; sample < 1000; ++sample) {
      const MixtureTurns::Turn turn = turns.At(sample);
      ASSERT_EQ(turn.index, taken[static_cast<size_t>(turn.source)]++);
      for (size_t i = 0; i < weights.size(); ++i) {
        const double due =
            static_cast<double>(sample + 1) * static_cast<double>(weights[i]) / parts;
        ASSERT_LT(std::abs(static_cast<double>(taken[i]) - due), 1.0) << sample << " " << i;
      }
    }
  }
}

TEST(MixtureTest, TurnsFarAwayFollowFromTheirNumberAlone) {
  const MixtureTurns turns({7, 2, 1});
  const int64_t periods = int64_t{1} << 50;
  for (int64_t i = 0; i < 10; ++i) {
    const MixtureTurns::Turn near = turns.At(i);
    const MixtureTurns::Turn far = turns.At(10 * periods + i);
    EXPECT_EQ(far.source, near.source);
    const std::vector<int64_t> weights = {7, 2, 1};
    EXPECT_EQ(far.index, near.index + periods * weights[static_cast<size_t>(near.source)]);
  }
}

}  // namespace
}  // namespace fsdprun::worker
