// What a save that fails leaves behind, and which are done again or succeed all the same.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"
#include "worker/checkpoint/channel.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// Fails the files of ranks while told to, and remembers where the last of them was to be.
class FailingDisk : public FileSystem {
 public:
  bool fails = false;
  std::string attempt;

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "make_directory" && effect.path.find("/step-") != std::string::npos) {
      attempt = effect.path;
    }
    return fails && effect.name == "write" && effect.path.ends_with(".distcp") ? EIO : 0;
  }
};

TEST(FailedSaveTest, WhatACancelledRankWritesAfterwardsIsRemovedByTheNextSave) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<FailingDisk>();
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    options.file_system = disk;
    Saver saver(options);
    disk->fails = true;
    EXPECT_THROW(saver.Save(1, StateOf(0, 1, 1)), CheckpointError);
    ASSERT_FALSE(std::filesystem::exists(disk->attempt));
    // It was about to begin its file when the attempt was removed.
    std::filesystem::create_directory(disk->attempt);
    std::ofstream(disk->attempt + "/__1_0.distcp") << "gigabytes";
    disk->fails = false;
    saver.Save(2, StateOf(0, 1, 2));
  });
  EXPECT_THAT(ListDirectory(dir.path()), ElementsAre(".claim", ".lock", "latest", "step-2"));
}

/// A quota of which nothing can be known in advance is used up by step 3, until step 1 is removed.
/// That begins only when somebody has met it.
class QuotaAfterRemoval : public FileSystem {
 public:
  std::atomic<int> reserved{0};
  std::optional<int64_t> FreeBytes(const std::string& /*path*/) override { return std::nullopt; }

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "remove" && effect.path.find("step-1.delete-") != std::string::npos) {
      is_met_.wait();
      has_removed_ = true;
    }
    if (effect.name != "reserve" || effect.path.find("step-3") == std::string::npos) {
      return 0;
    }
    if (++reserved == 1) {
      meets_.set_value();
      return EDQUOT;
    }
    return has_removed_ ? 0 : EDQUOT;
  }

 private:
  std::promise<void> meets_;
  const std::shared_future<void> is_met_ = meets_.get_future().share();
  std::atomic<bool> has_removed_{false};
};

TEST(FailedSaveTest, QuotaThatIsUsedUpDuringARemovalIsTriedOnceMoreAfterIt) {
  for (const bool is_removing : {true, false}) {
    const TemporaryDirectory dir;
    const auto disk = std::make_shared<QuotaAfterRemoval>();
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
      options.file_system = disk;
      options.keep = is_removing ? 1 : 0;
      options.background = std::make_shared<LoneChannel>();
      Saver saver(options);
      if (!is_removing) {
        saver.Save(1, StateOf(0, 1, 1));
        EXPECT_THAT(MessageOf<CheckpointError>([&] { saver.Save(3, StateOf(0, 1, 3)); }),
                    HasSubstr("the disk quota is used up"));
        return;
      }
      for (const int64_t step : {1, 2}) {
        saver.Begin(step, StateOf(0, 1, step));
        saver.Finish();
      }
      saver.Save(3, StateOf(0, 1, 3));
    });
    EXPECT_EQ(disk->reserved, is_removing ? 2 : 1);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), is_removing ? 3 : 1);
  }
}

/// Memory is short where old checkpoints are to be removed.
class ShortOfMemory : public FileSystem {
 protected:
  int Intercept(const Effect& effect) override {
    if (effect.path.find(".delete-") != std::string::npos) {
      throw std::bad_alloc();
    }
    return 0;
  }
};

TEST(FailedSaveTest, SaveThatIsPublishedSucceedsWhateverItsRetirementMeets) {
  const TemporaryDirectory dir;
  std::vector<std::string> warnings;
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &warnings));
    options.file_system = std::make_shared<ShortOfMemory>();
    options.keep = 1;
    Saver saver(options);
    for (const int64_t step : {1, 2}) {
      EXPECT_TRUE(saver.Save(step, StateOf(collectives->rank(), 2, step))
                      .ends_with("/step-" + std::to_string(step)));
    }
  });
  EXPECT_THAT(warnings, Contains(HasSubstr("removed no old checkpoints: ")));
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 2);
}

}  // namespace
}  // namespace fsdprun::checkpoint
