#include "worker/run/determinism.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

TEST(DeterminismTest, CublasMustBeToldBefore) {
  const c10::Device gpu(c10::kCUDA, 0);
  EXPECT_THROW(UseDeterministicAlgorithms(gpu, ""), ConfigError);
  EXPECT_THROW(UseDeterministicAlgorithms(gpu, ":8:8"), ConfigError);
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST(DeterminismTest, OperatorsWithoutDeterministicAlgorithmThrow) {
  const at::Tensor values = at::arange(4, at::kFloat);
  const auto put = [&] {
    return at::zeros({4}).put(at::tensor({0, 0, 1, 1}, at::kLong), values, /*accumulate=*/false);
  };
  EXPECT_NO_THROW(put());
  UseDeterministicAlgorithms(c10::kCPU, "");
  EXPECT_ANY_THROW(put());
  EXPECT_TRUE(at::globalContext().deterministicCuDNN());
  at::globalContext().setDeterministicAlgorithms(false, /*warn_only=*/false);
  at::globalContext().setDeterministicCuDNN(false);
  at::globalContext().setDeterministicFillUninitializedMemory(true);
}

}  // namespace
}  // namespace fsdprun::worker
