#include "worker/data/permutation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;

std::vector<int64_t> Images(int64_t size, uint64_t seed, uint64_t epoch, uint64_t source = 0) {
  const IndexPermutation permutation(size, seed, epoch, source);
  std::vector<int64_t> images;
  for (int64_t i = 0; i < size; ++i) {
    images.push_back(permutation.At(i));
  }
  return images;
}

TEST(PermutationTest, EverySmallSizeIsPermuted) {
  for (int64_t size = 1; size <= 300; ++size) {
    const std::vector<int64_t> images = Images(size, 7, static_cast<uint64_t>(size % 3));
    const std::set<int64_t> distinct(images.begin(), images.end());
    ASSERT_EQ(distinct.size(), static_cast<size_t>(size));
    ASSERT_EQ(*distinct.begin(), 0);
    ASSERT_EQ(*distinct.rbegin(), size - 1);
  }
}

TEST(PermutationTest, SeedEpochAndSourceAllCount) {
  const std::vector<std::vector<int64_t>> all = {Images(100, 1, 0), Images(100, 2, 0),
                                                 Images(100, 1, 1), Images(100, 1, 0, 1),
                                                 Images(100, 0, 1), Images(100, 0, 0, 1)};
  EXPECT_EQ(std::set<std::vector<int64_t>>(all.begin(), all.end()).size(), all.size());
}

TEST(PermutationTest, EqualsThePythonOfTheDocumentation) {
  const char* python = std::getenv("FSDPRUN_PYTHON");
  const char* script = std::getenv("FSDPRUN_PERMUTATION_SCRIPT");
  if (python == nullptr || script == nullptr) {
    GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
  }
  FILE* pipe = popen((std::string(python) + " " + script).c_str(), "re");
  std::array<char, 4096> line;
  int cases = 0;
  for (; fgets(line.data(), line.size(), pipe) != nullptr; ++cases) {
    const auto golden = nlohmann::json::parse(line.data());
    const IndexPermutation permutation(golden["size"], golden["seed"], golden["epoch"],
                                       golden["source"]);
    for (size_t i = 0; i < golden["indices"].size(); ++i) {
      EXPECT_EQ(permutation.At(golden["indices"][i]), golden["images"][i].get<int64_t>())
          << golden.dump();
    }
  }
  EXPECT_EQ(pclose(pipe), 0);
  EXPECT_EQ(cases, 27);
}

// Checkpoints depend on these numbers.
TEST(PermutationTest, NumbersNeverChange) {
  EXPECT_THAT(Images(10, 0, 0), ElementsAre(6, 2, 3, 8, 9, 7, 4, 5, 0, 1));
  const IndexPermutation large(1'000'000'007, 12345, 6, 2);
  EXPECT_THAT((std::vector<int64_t>{large.At(0), large.At(1), large.At(999'999'999)}),
              ElementsAre(441326583, 958514336, 157845398));
}

// Neighbours come far from each other: the differences of neighbouring images are those of a random
// permutation, whose mean is a third of the size. Their number of ascents is a half, with a
// deviation of sqrt(size / 12).
TEST(PermutationTest, LooksLikeChance) {
  for (const int64_t size : {1000, 4096, 5000}) {
    for (const uint64_t seed : {0, 1, 2, 3}) {
      const std::vector<int64_t> images = Images(size, seed, 0);
      double distance = 0;
      double ascents = 0;
      int64_t fixed = 0;
      for (size_t i = 0; i + 1 < images.size(); ++i) {
        distance += static_cast<double>(std::abs(images[i + 1] - images[i]));
        ascents += images[i] < images[i + 1] ? 1 : 0;
        fixed += images[i] == static_cast<int64_t>(i) ? 1 : 0;
      }
      const auto n = static_cast<double>(size);
      EXPECT_NEAR(distance / n / n, 1.0 / 3, 5 * 0.24 / std::sqrt(n));
      EXPECT_NEAR(ascents / n, 0.5, 5 * std::sqrt(1.0 / 12 / n));
      EXPECT_LE(fixed, 8);  // about one is expected
    }
  }
}

TEST(PermutationTest, LargestSizesStayInside) {
  for (const int64_t size : {(int64_t{1} << 62) + 1, INT64_MAX}) {
    const IndexPermutation permutation(size, 3, 4, 5);
    for (int64_t i = 0; i < 100; ++i) {
      const int64_t image = permutation.At(size - 1 - i);
      EXPECT_TRUE(image >= 0 && image < size);
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
