#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/run/sharded_model.h"

namespace fsdprun::worker {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

/// Two ranks fill their weights.
class FillWeightsTest : public testing::Test {
 protected:
  FillWeightsTest() { std::ofstream(path_) << "short"; }

  /// What both throw.
  template <class Error>
  std::string RefusalOfAll() {
    std::vector<std::string> said(2);
    checkpoint::ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& ranks) {
      checkpoint::Group group;
      group.collectives = ranks;
      group.warn = [&](const std::string& text) { told_.push_back(text); };  // rank 0's alone
      const auto rank = static_cast<size_t>(ranks->rank());
      said[rank] = checkpoint::MessageOf<Error>(
          [&] { FillWeightsOnAll(runs_[rank].config, group, runs_[rank].state.model); });
    });
    EXPECT_EQ(said[0], said[1]);
    return said[0];
  }

  const checkpoint::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "weights.safetensors";
  SmallRun runs_[2];
  std::vector<std::string> told_;
};

TEST_F(FillWeightsTest, WhatOneRankRefusesAllDo) {
  runs_[1].config.model.weights = path_;
  EXPECT_THAT(RefusalOfAll<ConfigError>(),
              AllOf(StartsWith("rank 1: " + path_), HasSubstr("too few")));
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(FillWeightsTest, WhatAllRefuseIsSaidOfNoRank) {
  runs_[0].config.model.weights = runs_[1].config.model.weights = path_;
  EXPECT_THAT(RefusalOfAll<ConfigError>(), StartsWith(path_));
}

TEST_F(FillWeightsTest, WhatOneRankCannotReadForNowIsTriedAgainByAll) {
  runs_[1].config.model.weights = path_;
  const checkpoint::PathFault fault(checkpoint::PathFault::kOpen, "weights.safetensors", ESTALE, 1);
  EXPECT_THAT(RefusalOfAll<ConfigError>(), HasSubstr("too few"));
  EXPECT_THAT(told_, ElementsAre(AllOf(StartsWith("rank 1: "), HasSubstr(path_),
                                       EndsWith("; trying again"))));
}

TEST_F(FillWeightsTest, WhatOneRankCannotReadAtAllAllThrow) {
  runs_[1].config.model.weights = path_;
  const checkpoint::PathFault fault(checkpoint::PathFault::kLook, "weights.safetensors", ESTALE);
  EXPECT_THAT(RefusalOfAll<checkpoint::CheckpointError>(),
              AllOf(StartsWith("rank 1: "), HasSubstr(path_)));
}

// Or each restart would read up to the broken sector.
TEST_F(FillWeightsTest, WhatTheDiskOfOneRankCannotReadAllRefuse) {
  runs_[1].config.model.weights = path_;
  const checkpoint::PathFault fault(checkpoint::PathFault::kOpen, "weights.safetensors", EIO);
  EXPECT_THAT(RefusalOfAll<ConfigError>(),
              AllOf(StartsWith("model.weights: rank 1: "), HasSubstr(path_)));
  EXPECT_THAT(told_, SizeIs(2));
}

}  // namespace
}  // namespace fsdprun::worker
