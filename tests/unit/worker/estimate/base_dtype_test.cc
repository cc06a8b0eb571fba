#include "worker/estimate/base_dtype.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <string>

#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/estimate/small_estimate.h"
#include "tests/unit/worker/estimate/stored_base.h"
#include "worker/estimate/estimate.h"

namespace fsdprun::worker {
namespace {

class BaseDtypeTest : public testing::Test {
 protected:
  std::string StoredAt(const std::string& path, const std::string& rank = "2") const {
    return DtypeOfStoredBase(EstimatedConfig({"lora.rank=" + rank, "model.weights=" + path}),
                             model_);
  }

  const checkpoint::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "weights.safetensors";
  const ModelConfig model_ = EstimatedModel();
};

TEST_F(BaseDtypeTest, IsThatOfTheFiles) {
  WriteZeros(model_, "BF16", path_);
  EXPECT_EQ(StoredAt(path_), "bfloat16");
  EXPECT_EQ(StoredAt(path_, "0"), "float32");  // no base
  WriteZeros(model_, "F32", path_);
  EXPECT_EQ(StoredAt(path_), "float32");
}

// Their load says what is wrong with them.
TEST_F(BaseDtypeTest, WhatCannotBeReadIsNoError) {
  EXPECT_EQ(StoredAt(path_), "float32");
  EXPECT_EQ(StoredAt("none"), "float32");
  std::ofstream(path_) << "short";
  EXPECT_EQ(StoredAt(path_), "float32");
}

// Else a fault of a moment would have the base kept in float32 for the whole run.
TEST_F(BaseDtypeTest, WhatMayPassIsAnError) {
  WriteZeros(model_, "BF16", path_);
  {
    const checkpoint::PathFault fault(checkpoint::PathFault::kOpen, "weights.safetensors", ESTALE);
    EXPECT_THROW(StoredAt(path_), checkpoint::CheckpointError);
  }
  EXPECT_EQ(StoredAt(path_), "bfloat16");
}

TEST_F(BaseDtypeTest, OnlyWhatComputesIsKept) {
  const auto kept = [](const std::string& rank, const std::string& param) {
    return DtypeOfBase(EstimatedConfig({"lora.rank=" + rank, "precision.param=" + param}),
                       "bfloat16");
  };
  EXPECT_EQ(kept("2", "bfloat16"), "bfloat16");
  EXPECT_EQ(kept("2", "float32"), "float32");
  EXPECT_EQ(kept("0", "bfloat16"), "float32");
}

TEST_F(BaseDtypeTest, TheEstimateCountsTwoBytesOfAWeight) {
  const TrainConfig config =
      EstimatedConfig({"lora.rank=2", "precision.param=bfloat16", "parallel.backend=nccl"});
  const auto shards = [&](const std::string& stored) {
    EstimateOptions options;
    options.weights_dtype = stored;
    return EstimateRun(config, model_, options).held.shards;
  };
  EXPECT_EQ(shards("float32") - shards("bfloat16"), 2 * ParameterCount(model_));
}

}  // namespace
}  // namespace fsdprun::worker
