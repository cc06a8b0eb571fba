#include "worker/run/batches.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

namespace fsdprun::worker {
namespace {

class BatchesTest : public testing::Test {
 protected:
  ~BatchesTest() override { std::filesystem::remove(path_); }

  /// Byte i has the value i, so that a token tells its place.
  std::shared_ptr<const TokenStream> Stream(int64_t size) {
    std::string text;
    for (int64_t i = 0; i < size; ++i) {
      text.push_back(static_cast<char>(i));
    }
    std::ofstream(path_, std::ios::binary) << text;
    return std::make_shared<const TokenStream>(std::vector<std::string>{path_});
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

TEST_F(BatchesTest, TargetsAreTheNextTokens) {
  TrainBatches batches(Stream(9), {.seq_len = 4});
  EXPECT_EQ(batches.window_count(), 2);
  DataCursor cursor;
  const Batch batch = batches.Next(3, cursor);  // the third window is the first of the second epoch
  EXPECT_TRUE(
      batch.inputs.equal(at::tensor({0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3}, at::kLong).view({3, 4})));
  EXPECT_TRUE(batch.targets.equal(batch.inputs + 1));
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
    const bool is_shuffled = cases++ % 2 == 1;  // the script's innermost loop
    const auto stream = Stream(golden["samples"].get<int64_t>() + 1);
    for (int64_t rank = 0; rank < golden["world"].get<int64_t>(); ++rank) {
      const auto expected = golden["ranks"][rank].get<std::vector<int64_t>>();
      TrainBatches batches(stream, {.seq_len = 1,
                                    .is_shuffled = is_shuffled,
                                    .seed = 11,
                                    .rank = rank,
                                    .world_size = golden["world"]});
      DataCursor cursor;
      const Batch batch = batches.Next(static_cast<int64_t>(expected.size()), cursor);
      ASSERT_TRUE(batch.inputs.view({-1}).equal(at::tensor(expected, at::kLong)))
          << "rank " << rank << " of " << golden.dump();
      EXPECT_EQ(cursor, (DataCursor{3, 0}));
    }
  }
  EXPECT_EQ(cases, 60);
}

TEST_F(BatchesTest, ACursorBringsBackTheRestOfAShuffledEpoch) {
  const auto stream = Stream(65);
  const BatchOptions options{.seq_len = 2, .is_shuffled = true, .seed = 5, .world_size = 2};
  TrainBatches whole(stream, options);
  DataCursor cursor;
  whole.Next(21, cursor);  // in the second epoch of 16 rounds
  TrainBatches resumed(stream, options);
  DataCursor again = resumed.Normalize(cursor);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(resumed.Next(2, again).inputs.equal(whole.Next(2, cursor).inputs));
  }
}

}  // namespace
}  // namespace fsdprun::worker
