#include "formats/tensors/weights_digest.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/tensors/memory_tensors.h"

namespace fsdprun {
namespace {

const std::vector<float> kValues = {1.5F, -2.0F, 0.0F, 1024.0F, -0.25F};

std::string DigestWith(const std::string& name, const std::vector<float>& values,
                       const std::string& dtype = "float32") {
  MemoryTensors source;
  source.Add("stored", {static_cast<int64_t>(values.size())}, values, dtype);
  return DigestOfWeights(source, {{name, "stored"}});
}

TEST(WeightsDigestTest, DoesNotDependOnWhoHasWhichPart) {
  WeightSums whole, parts;
  whole.Add(0, kValues.data(), 5);
  for (const int64_t begin : {3, 0, 2}) {
    WeightSums part;
    part.Add(begin, kValues.data() + begin, begin == 3 ? 2 : begin == 0 ? 2 : 1);
    parts.Add(part);
  }
  EXPECT_EQ(DigestOfSums({{"w", whole}}), DigestOfSums({{"w", parts}}));
  EXPECT_EQ(DigestOfSums({{"w", whole}}), DigestWith("w", kValues));
  EXPECT_EQ(DigestWith("w", kValues).size(), 16u);
}

TEST(WeightsDigestTest, IsOfTheValuesAndNotOfTheirDtype) {
  for (const char* dtype : {"bfloat16", "float16", "float64"}) {
    EXPECT_EQ(DigestWith("w", kValues, dtype), DigestWith("w", kValues)) << dtype;
  }
  MemoryTensors source;
  source.Add("w", {1}, {1});
  EXPECT_NE(DigestOfWeights(source, {{"w", "w"}}), DigestOfWeights(source, {}));
}

TEST(WeightsDigestTest, ChangesWithAValueAPlaceAndAName) {
  const std::string digest = DigestWith("w", kValues);
  std::vector<float> other = kValues;
  other[2] = -0.0F;
  EXPECT_NE(DigestWith("w", other), digest);
  other = kValues;
  std::swap(other[0], other[4]);
  EXPECT_NE(DigestWith("w", other), digest);
  EXPECT_NE(DigestWith("v", kValues), digest);
}

TEST(WeightsDigestTest, WhatIsNoNumberWithAFractionIsRefused) {
  class Integers : public TensorSource {
   public:
    Integers() { tensors_["w"] = {"int64", {1}, 1, {}}; }
    void Read(const std::string&, int64_t, int64_t, void*) override { FAIL(); }
  } source;
  EXPECT_THROW(DigestOfWeights(source, {{"w", "w"}}), fsdp::archive::Error);
}

}  // namespace
}  // namespace fsdprun
