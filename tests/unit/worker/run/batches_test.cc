#include "worker/run/batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

namespace fsdprun::worker {
namespace {

class BatchesTest : public testing::Test {
 protected:
  ~BatchesTest() override { std::filesystem::remove(path_); }

  std::shared_ptr<const TokenStream> Stream(int64_t size) {
    std::string text;
    for (int64_t i = 0; i < size; ++i) {
      text.push_back(static_cast<char>(i));
    }
    std::ofstream(path_, std::ios::binary) << text;
    return std::make_shared<const TokenStream>(std::vector<std::string>{path_});
  }
  /// Byte i has the value i, so that a token tells its place.
  std::shared_ptr<const TrainData> Data(int64_t size, int64_t seq_len) {
    return std::make_shared<const TrainData>(Windows(Stream(size), seq_len));
  }

  const std::string path_ = testing::TempDir() + "batches_" + std::to_string(getpid());
};

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

TEST_F(BatchesTest, WhatCannotBeReadIsThrownWhenTheStepComesToIt) {
  const auto data = Data(41, 4);
  TrainBatches batches(data, {});
  DataCursor cursor;
  batches.Next(1, cursor);
  batches.Next(1, cursor);
  std::filesystem::resize_file(path_, 30);  // in the window that begins at 28
  EXPECT_THROW(
      {
        for (int i = 0; i < 8; ++i) {
          batches.Next(1, cursor);
        }
      },
      DataError);
  EXPECT_EQ(cursor, (DataCursor{0, 7}));  // before what could not be read
  DataCursor beginning;
  EXPECT_EQ(batches.Next(1, beginning).inputs[0][1].item<int64_t>(), 1);
}

TEST_F(BatchesTest, TargetsAreTheNextTokens) {
  TrainBatches batches(Data(9, 4), {});
  EXPECT_EQ(batches.window_count(), 2);
  DataCursor cursor;
  const Batch batch = batches.Next(3, cursor);  // the third window is the first of the second epoch
  EXPECT_TRUE(
      batch.inputs.equal(at::tensor({0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}, at::kLong).view({3, 4})));
  EXPECT_TRUE(batch.targets.equal(batch.inputs + 1));
  EXPECT_EQ(batch.counted, 12);
  EXPECT_EQ(cursor, (DataCursor{1, 1}));
}

TEST_F(BatchesTest, WindowsEqualTorchDistributedSamplerOverEpochsAndWorlds) {
  if (std::getenv("FSDPRUN_PYTHON") == nullptr) {
    GTEST_SKIP() << "needs FSDPRUN_PYTHON (ctest sets it after scripts/setup)";
  }
  const std::string output = RunSamplerScript();
  ASSERT_FALSE(output.empty()) << "the reference did not run";
  int cases = 0;
  for (size_t begin = 0; begin < output.size(); begin = output.find('\n', begin) + 1) {
    const auto golden =
        nlohmann::json::parse(output.substr(begin, output.find('\n', begin) - begin));
    ++cases;
    const auto data = Data(golden["samples"].get<int64_t>() + 1, 1);
    for (int64_t rank = 0; rank < golden["world"].get<int64_t>(); ++rank) {
      const auto expected = golden["ranks"][rank].get<std::vector<int64_t>>();
      TrainBatches batches(data, {.is_shuffled = golden["shuffle"],
                                  .seed = 11,
                                  .rank = rank,
                                  .world_size = golden["world"],
                                  .drops_last = golden["drop_last"]});
      DataCursor cursor;
      const Batch batch = batches.Next(static_cast<int64_t>(expected.size()), cursor);
      ASSERT_TRUE(batch.inputs.view({-1}).equal(at::tensor(expected, at::kLong)))
          << "rank " << rank << " of " << golden.dump();
      EXPECT_EQ(cursor, (DataCursor{3, 0}));
    }
  }
  EXPECT_EQ(cases, 104);
}

TEST_F(BatchesTest, ACursorBringsBackTheRestOfAShuffledEpoch) {
  const auto data = Data(65, 2);
  for (const Sampler sampler : {Sampler::kTorch, Sampler::kGlobal}) {
    const BatchOptions options{.is_shuffled = true, .seed = 5, .world_size = 2, .sampler = sampler};
    TrainBatches whole(data, options);
    DataCursor cursor;
    whole.Next(21, cursor);  // in the second epoch of 16 rounds
    EXPECT_EQ(cursor, whole.CursorAfter(21));
    TrainBatches resumed(data, options);
    DataCursor again = resumed.Normalize(cursor);
    for (int i = 0; i < 20; ++i) {
      EXPECT_TRUE(resumed.Next(2, again).inputs.equal(whole.Next(2, cursor).inputs));
    }
  }
}

// Three ranks share batches of 4 samples; each reads 2, of which one may not count.
TEST_F(BatchesTest, ExpectedStepsAreThoseThatAreAskedFor) {
  const auto data = Data(65, 2);
  std::vector<at::Tensor> rows;
  for (const bool is_expected : {false, true}) {
    TrainBatches batches(data, {.rank = 1, .world_size = 3, .sampler = Sampler::kGlobal});
    if (is_expected) {
      batches.ExpectSteps({1, 1}, 4);
    }
    DataCursor cursor;
    std::vector<at::Tensor> taken;
    for (int step = 0; step < 10; ++step) {
      const DataCursor begin = cursor;
      taken.push_back(batches.Next(1, cursor).inputs);
      taken.push_back(batches.Next(1, cursor).inputs);
      EXPECT_EQ(cursor, batches.Behind(begin, 6));
      cursor = batches.Behind(begin, 4);
    }
    rows.push_back(at::cat(taken).select(1, 0));
  }
  EXPECT_TRUE(rows[0].equal(rows[1]));
  // Windows of 2 tokens; rank 1 takes samples 1 and 4 of each step.
  EXPECT_TRUE(rows[1].slice(0, 0, 4).equal(at::tensor({2, 8, 10, 16}, at::kLong)));
}

// What a stop, a rollback or an evaluation of the same batches does to the position.
TEST_F(BatchesTest, AnyPositionMayFollowAnyOther) {
  const auto data = Data(65, 2);
  TrainBatches batches(data, {.is_shuffled = true});
  const auto take = [&](DataCursor cursor, int64_t batch_size) {
    return batches.Next(batch_size, cursor).inputs;
  };
  const at::Tensor first = take({0, 0}, 2);
  const at::Tensor later = take({1, 6}, 3);
  EXPECT_TRUE(take({0, 0}, 2).equal(first));
  EXPECT_TRUE(take({1, 6}, 3).equal(later));
  EXPECT_TRUE(take({1, 6}, 2).equal(later.slice(0, 0, 2)));
}

TEST_F(BatchesTest, MixtureTakesTheWindowsOfEachSourceByTheirWeights) {
  const auto whole = Stream(65);
  const auto data = std::make_shared<const TrainData>(std::vector<Windows>(2, Windows(whole, 2)),
                                                      std::vector<double>{3, 1});
  TrainBatches batches(data, {.sampler = Sampler::kGlobal});
  DataCursor cursor;
  const at::Tensor firsts = batches.Next(8, cursor).inputs.select(1, 0);
  // In their own order: windows 0 to 5 of the one, and 0 and 1 of the other.
  std::multiset<int64_t> taken;
  for (int64_t i = 0; i < 8; ++i) {
    taken.insert(firsts[i].item<int64_t>());
  }
  EXPECT_EQ(taken, (std::multiset<int64_t>{0, 0, 2, 2, 4, 6, 8, 10}));
  EXPECT_EQ(cursor, (DataCursor{0, 8}));
}

TEST_F(BatchesTest, BatchWithoutTargetsThatCountHasOneForTheMean) {
  std::ofstream(path_ + "2", std::ios::binary) << "abc";
  const auto stream =
      std::make_shared<const TokenStream>(std::vector<std::string>{path_ + "2", path_ + "2"});
  const auto data = std::make_shared<const TrainData>(Windows(stream, 1, Documents::kMask));
  TrainBatches batches(data, {});
  DataCursor cursor{0, 2};  // the window of the first file's last byte
  const Batch batch = batches.Next(1, cursor);
  EXPECT_EQ(batch.counted, 0);
  EXPECT_EQ(batch.targets.item<int64_t>(), 0);
  std::filesystem::remove(path_ + "2");
}

}  // namespace
}  // namespace fsdprun::worker
