#include "worker/run/out_of_memory.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <string>

#include "proto/worker_contract.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/batch/micro_batch_limit.h"
#include "worker/run/failure.h"

namespace fsdprun::worker {
namespace {

c10::Error TorchError(const std::string& text) {
  return c10::Error(c10::SourceLocation{__func__, __FILE__, __LINE__}, text);
}

TEST(OutOfMemoryTest, AllocationsThatFailAreKnown) {
  EXPECT_TRUE(IsOutOfMemory(std::bad_alloc()));
  EXPECT_TRUE(IsOutOfMemory(
      c10::OutOfMemoryError(c10::SourceLocation{__func__, __FILE__, __LINE__}, "CUDA")));
  EXPECT_TRUE(IsOutOfMemory(TorchError(
      "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes")));
  EXPECT_TRUE(IsOutOfMemory(TorchError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling")));
  EXPECT_FALSE(IsOutOfMemory(TorchError("CUDA error: device-side assert triggered")));
  EXPECT_FALSE(IsOutOfMemory(std::runtime_error("out of luck\nCUDA error: out of memory")));
}

// Else each rank would say that it had no memory, and the first to say so would be the cause.
TEST(OutOfMemoryTest, WhatAPeerHadNoMemoryForIsNotThisRanks) {
  EXPECT_FALSE(IsOutOfMemory(
      fsdp::PeerError(c10::SourceLocation{__func__, __FILE__, __LINE__},
                      "rank 1 has no memory for what it receives in a reduction: [enforce fail] "
                      "DefaultCPUAllocator: can't allocate memory")));
}

// By the allocator's own words, whichever they are in this version of LibTorch.
TEST(OutOfMemoryTest, TheHostsAllocatorIsUnderstood) {
  try {
    const at::Tensor more_than_there_is = at::empty({int64_t{1} << 60}, at::kChar);
    FAIL();
  } catch (const std::exception& error) {
    EXPECT_TRUE(IsOutOfMemory(error)) << error.what();
  }
}

class EndForMemoryTest : public testing::Test {
 protected:
  EndForMemoryTest() {
    resolved_["checkpoint"]["dir"] = dir_.path();
    resolved_["model"]["config"] = "unused";
    resolved_["data"]["train"] = {"unused"};
    resolved_["train"]["micro_batch_size"] = 8;
    resolved_["train"]["on_out_of_memory"] = "shrink";
    resolved_["parallel"]["backend"] = "gloo";
  }
  /// How it ends, with forwards of so many windows.
  MemoryError End(int64_t windows, bool is_restarted = true, int64_t ranks = 1,
                  bool is_evaluation = false, bool is_replaced = false) {
    TrainConfig config = ParseConfig(resolved_);
    config.train.micro_batch_size = windows;
    try {
      EndForMemory(*file_system_,
                   {config, resolved_, model_, 12, 0, ranks, "run", "launch", is_restarted,
                    is_evaluation, is_replaced, has_graph_},
                   std::bad_alloc());
    } catch (const MemoryError& error) {
      return error;
    }
  }
  std::optional<MicroBatchLimit> Written() const {
    const std::string path = MicroBatchLimitPath(dir_.path());
    return checkpoint::FileExists(path)
               ? DecodeMicroBatchLimit(checkpoint::ReadWholeFile(path, kMicroBatchLimitBytesMax))
               : std::nullopt;
  }

  const checkpoint::TemporaryDirectory dir_;
  std::unique_ptr<checkpoint::FileSystem> file_system_ = std::make_unique<checkpoint::FileSystem>();
  Json resolved_ = DefaultConfig();
  const ModelConfig model_ = SmallLlama();
  bool has_graph_ = false;
};

TEST_F(EndForMemoryTest, HalfIsWrittenForTheNextStart) {
  const MemoryError error = End(8);
  EXPECT_FALSE(error.is_final());
  const std::string text = error.what();
  EXPECT_EQ(text.find("step 12: no memory for a forward and backward of 8 windows"), 0u) << text;
  EXPECT_NE(text.find("micro-batch.json says now that it takes at most 4, and the next start does "
                      "the same batches so, from the newest checkpoint"),
            std::string::npos)
      << text;
  ASSERT_TRUE(Written());
  EXPECT_EQ(Written()->windows, 4);
  EXPECT_EQ(WhyNotFor(*Written(), {"run", "", MicroBatchSettings(resolved_, model_, 1), true}), "");
}

// 16 windows of 8 ranks are 2 in a forward, whatever train.micro_batch_size would allow.
TEST_F(EndForMemoryTest, HalfIsOfWhatAForwardReallyHas) {
  resolved_["train"]["global_batch_size"] = 16;
  const std::string text = End(8, /*is_restarted=*/true, /*ranks=*/8).what();
  EXPECT_NE(text.find("no memory for a forward and backward of 2 windows: "), std::string::npos)
      << text;
  EXPECT_EQ(Written()->windows, 1);
  resolved_["train"]["global_batch_size"] = 8;
  EXPECT_TRUE(End(8, /*is_restarted=*/true, /*ranks=*/8).is_final());
}

TEST_F(EndForMemoryTest, WhatAGraphKeepsIsNamed) {
  has_graph_ = true;
  const std::string text = End(8).what();
  EXPECT_EQ(text.find("step 12: no memory for a forward and backward of 8 windows "
                      "(train.micro_batch_size), beside that of a step which the graph of "
                      "train.step_graph keeps: "),
            0u)
      << text;
}

TEST_F(EndForMemoryTest, AnEvaluationIsNamed) {
  const std::string text =
      End(8, /*is_restarted=*/true, /*ranks=*/1, /*is_evaluation=*/true).what();
  EXPECT_EQ(text.find("the evaluation after step 12: no memory for a forward of 8 windows"), 0u)
      << text;
  EXPECT_EQ(Written()->windows, 4);
}

// However few a step has for each rank.
TEST_F(EndForMemoryTest, AnEvaluationHasAsManyWindowsAsAForwardMayHave) {
  resolved_["train"]["global_batch_size"] = 16;
  const std::string text =
      End(8, /*is_restarted=*/true, /*ranks=*/8, /*is_evaluation=*/true).what();
  EXPECT_NE(text.find("no memory for a forward of 8 windows"), std::string::npos) << text;
  EXPECT_EQ(Written()->windows, 4);
}

// It has found out what fits, or will.
TEST_F(EndForMemoryTest, TheLimitOfAnotherLaunchIsLeftAsItIs) {
  const std::string text = End(8, /*is_restarted=*/true, /*ranks=*/1, /*is_evaluation=*/false,
                               /*is_replaced=*/true)
                               .what();
  EXPECT_NE(text.find("another launch has taken over "), std::string::npos) << text;
  EXPECT_FALSE(Written());
}

TEST_F(EndForMemoryTest, WithoutALauncherThereIsAdvice) {
  const std::string text = End(8, /*is_restarted=*/false).what();
  EXPECT_NE(text.find("start it again, or with a launcher that does"), std::string::npos) << text;
  EXPECT_NE(text.find("; set "), std::string::npos) << text;
  EXPECT_EQ(Written()->windows, 4);
}

TEST_F(EndForMemoryTest, OneWindowCannotBeHalved) {
  const MemoryError error = End(1);
  EXPECT_TRUE(error.is_final());
  const std::string text = error.what();
  EXPECT_NE(text.find("there is nothing smaller; set "), std::string::npos) << text;
  EXPECT_EQ(text.find("train.micro_batch_size="), std::string::npos) << text;
  EXPECT_FALSE(Written());
}

TEST_F(EndForMemoryTest, UnlessItIsAskedForNothingIsWritten) {
  resolved_["train"]["on_out_of_memory"] = "stop";
  const MemoryError error = End(8);
  EXPECT_FALSE(error.is_final());
  EXPECT_NE(std::string(error.what()).find("; set "), std::string::npos) << error.what();
  EXPECT_FALSE(Written());
}

TEST_F(EndForMemoryTest, AFullDiskIsToldBesides) {
  class FullDisk : public checkpoint::FileSystem {
    int Intercept(const checkpoint::Effect& effect) override {
      return effect.name == "write" ? ENOSPC : 0;
    }
  };
  file_system_ = std::make_unique<FullDisk>();
  const std::string text = End(8).what();
  EXPECT_NE(text.find("that it takes at most 4 could not be written: "), std::string::npos) << text;
  EXPECT_FALSE(Written());
}

TEST_F(EndForMemoryTest, OnlyTheLastOneEndsTheJobForGood) {
  const auto exit_code = [](const MemoryError& error) {
    return DescribeFailure(std::make_exception_ptr(error), /*is_launched=*/true).exit_code;
  };
  EXPECT_EQ(exit_code(End(8)), contract::kExitFailure);
  EXPECT_EQ(exit_code(End(1)), contract::kExitConfig);
}

}  // namespace
}  // namespace fsdprun::worker
