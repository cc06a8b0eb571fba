#include "formats/tensors/merged_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/tensors/memory_tensors.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

std::string RefusalOf(const std::function<void()>& call) {
  try {
    call();
    return "";
  } catch (const fsdp::archive::Error& error) {
    return error.what();
  }
}

/// A layer of 3 outputs and 4 inputs, with an adapter of rank 2.
class MergedTensorsTest : public testing::Test {
 protected:
  MergedTensorsTest() {
    adapters_.Add("a", {2, 4}, a_);
    adapters_.Add("b", {3, 2}, b_);
    base_.Add("norm", {2}, {7, 8});
  }

  MergedTensors Merge(const MergeOptions& options) {
    return {base_, adapters_, {{"w", {"a", "b"}}}, options};
  }
  /// W + 0.5 B A: whole numbers, exact in every dtype.
  float Expected(int64_t out, int64_t in) const {
    float sum = 0;
    for (int64_t k = 0; k < 2; ++k) {
      sum += b_[static_cast<size_t>(out * 2 + k)] * a_[static_cast<size_t>(k * 4 + in)];
    }
    return Weight(out, in) + 0.5F * sum;
  }
  static float Weight(int64_t out, int64_t in) { return static_cast<float>(10 * out + in); }
  std::vector<float> Matrix(bool is_transposed,
                            const std::function<float(int64_t, int64_t)>& element) const {
    std::vector<float> values;
    for (int64_t i = 0; i < 12; ++i) {
      values.push_back(is_transposed ? element(i % 3, i / 3) : element(i / 4, i % 4));
    }
    return values;
  }
  void AddWeight(bool is_transposed, const std::string& dtype = "float32") {
    base_.Add("w", is_transposed ? std::vector<int64_t>{4, 3} : std::vector<int64_t>{3, 4},
              Matrix(is_transposed, Weight), dtype);
  }

  const std::vector<float> a_ = {2, 4, -2, 0, 6, 2, 4, 8};
  const std::vector<float> b_ = {1, 2, 3, -4, 0, 5};
  MemoryTensors base_, adapters_;
};

TEST_F(MergedTensorsTest, AdaptersThatDoNotFitAreRefused) {
  EXPECT_THAT(RefusalOf([&] { Merge({}); }), HasSubstr("no such weight"));
  AddWeight(/*is_transposed=*/true);
  EXPECT_THAT(RefusalOf([&] { Merge({}); }),
              HasSubstr("cannot merge a and b with w: their shapes"));
  base_.Add("w", {12}, std::vector<float>(12));
  EXPECT_THAT(RefusalOf([&] { Merge({}); }), HasSubstr("shapes"));
  AddWeight(/*is_transposed=*/false);
  adapters_.Add("b", {3, 1}, {1, 2, 3});
  EXPECT_THAT(RefusalOf([&] { Merge({}); }), HasSubstr("shapes"));
  MemoryTensors none;
  EXPECT_THAT(RefusalOf([&] {
                MergedTensors(base_, none, {{"w", {"a", "b"}}}, {});
              }),
              HasSubstr("a is missing"));
}

TEST_F(MergedTensorsTest, ElementsAreThoseOfTheSumWhateverIsReadAtOnce) {
  for (const bool is_transposed : {false, true}) {
    for (const char* dtype : {"float32", "bfloat16", "float64"}) {
      AddWeight(is_transposed, dtype);
      MergedTensors merged = Merge({.scale = 0.5, .is_transposed = is_transposed});
      const std::vector<float> expected =
          Matrix(is_transposed, [&](int64_t out, int64_t in) { return Expected(out, in); });
      for (const int64_t piece : {1, 3, 5, 12}) {
        EXPECT_EQ(ReadFloats(merged, "w", 12, piece), expected) << dtype << piece;
      }
      EXPECT_EQ(merged.tensors().at("w").dtype, dtype);
    }
  }
}

TEST_F(MergedTensorsTest, OtherWeightsStay) {
  AddWeight(/*is_transposed=*/false);
  MergedTensors merged = Merge({.scale = 0.5});
  EXPECT_EQ(ReadFloats(merged, "norm", 2, 2), (std::vector<float>{7, 8}));
  EXPECT_EQ(merged.Weights(), base_.Weights());
}

}  // namespace
}  // namespace fsdprun
