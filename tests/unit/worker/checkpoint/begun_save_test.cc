// Saves that are made beside the caller.

#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/step_list.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"
#include "worker/checkpoint/channel.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {
namespace {

/// Over collectives that nobody else uses.
class OwnCollectives : public Channel {
 public:
  explicit OwnCollectives(const std::shared_ptr<fsdp::Collectives>& collectives)
      : group_(GroupOf(collectives)) {}
  std::string Ask(const std::string& mine, const Answer& answer) override {
    const std::vector<std::string> texts = GatherTexts(group_, mine);
    return BroadcastText(group_, group_.collectives->rank() == 0 ? answer(texts) : "");
  }
  std::string Broadcast(const std::string& mine) override { return BroadcastText(group_, mine); }
  void Cancel(const CheckpointError& /*why*/) override {}

 private:
  Group group_;
};

/// Fails the writes of the file `name` while it is told to.
class FullForOne : public FileSystem {
 public:
  explicit FullForOne(std::string name) : name_(std::move(name)) {}
  std::atomic<bool> is_full{true};

 protected:
  int Intercept(const Effect& effect) override {
    return is_full && effect.name == "write" && effect.path.ends_with(name_) ? ENOSPC : 0;
  }

 private:
  std::string name_;
};

/// On rank 1: loses the way to the others, for ever, before it hears what has become of the files.
class LosesTheWay : public OwnCollectives {
 public:
  explicit LosesTheWay(const std::shared_ptr<fsdp::Collectives>& collectives)
      : OwnCollectives(collectives), loses_(collectives->rank() == 1) {}
  std::string Ask(const std::string& mine, const Answer& answer) override {
    std::string text = OwnCollectives::Ask(mine, answer);
    if (loses_ && ++asked_ > 1) {  // after the first the files are written
      throw CheckpointError("the store is gone", kChannelLost);
    }
    return text;
  }
  std::string Broadcast(const std::string& mine) override {
    if (loses_ && asked_ > 1) {
      throw CheckpointError("the store is gone", kChannelLost);
    }
    return OwnCollectives::Broadcast(mine);
  }

 private:
  const bool loses_;
  int asked_ = 0;
};

/// Hangs from the first effect on a step, until it is told to go on.
class Hung : public FileSystem {
 public:
  void LetGo() { may_go_.set_value(); }

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.path.find("step-") != std::string::npos) {
      went_.wait();
    }
    return 0;
  }

 private:
  std::promise<void> may_go_;
  const std::shared_future<void> went_ = may_go_.get_future().share();
};

/// Holds up the removal of what has this in its name. Once `is_full`, it has no room for a step.
class SlowRemoval : public FileSystem {
 public:
  explicit SlowRemoval(std::string part = ".delete-") : part_(std::move(part)) {}
  std::atomic<bool> is_full{false};
  void LetGo() { may_go_.set_value(); }
  std::optional<int64_t> FreeBytes(const std::string& /*path*/) override {
    return is_full ? 0 : int64_t{1} << 40;
  }

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "remove" && effect.path.find(part_) != std::string::npos) {
      went_.wait();
    }
    return 0;
  }

 private:
  const std::string part_;
  std::promise<void> may_go_;
  const std::shared_future<void> went_ = may_go_.get_future().share();
};

/// Has no room for step 4 until step 1 is removed, which begins only when somebody has seen that.
class RoomAfterRemoval : public FileSystem {
 public:
  std::atomic<bool> was_full{false};
  std::optional<int64_t> FreeBytes(const std::string& path) override {
    const bool is_full = path.find("step-4") != std::string::npos && !has_removed_;
    was_full = was_full || is_full;
    return is_full ? 0 : int64_t{1} << 40;
  }

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "remove" && effect.path.find("step-1.delete-") != std::string::npos) {
      while (!was_full) {  // so that the next save is there before
        std::this_thread::yield();
      }
      has_removed_ = true;
    }
    return 0;
  }

 private:
  std::atomic<bool> has_removed_{false};
};

/// Has so much room, and counts what is done to it.
class SmallDisk : public FileSystem {
 public:
  std::atomic<int64_t> free_bytes{int64_t{1} << 40};
  std::atomic<int> made{0};
  std::optional<int64_t> FreeBytes(const std::string& /*path*/) override { return free_bytes; }

 protected:
  int Intercept(const Effect& effect) override {
    made += effect.path.find("step-") != std::string::npos && effect.name != "remove";
    return 0;
  }
};

/// Runs `body(saver, rank)` on two ranks; `file_system`: of both, as is `must_give_up`. Each saver
/// keeps two.
template <typename Background = OwnCollectives>
void OnTwoRanks(const std::string& dir, const std::shared_ptr<FileSystem>& file_system,
                const std::function<void(Saver&, int64_t)>& body,
                const std::function<bool()>& must_give_up = nullptr) {
  ThreadRanks background(2);
  std::vector<std::shared_ptr<fsdp::Collectives>> own(2);
  background.Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    own[static_cast<size_t>(collectives->rank())] = collectives;
  });
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.file_system = file_system;
    options.keep = 2;
    options.must_give_up = must_give_up;
    options.background =
        std::make_shared<Background>(own[static_cast<size_t>(collectives->rank())]);
    Saver saver(options);
    body(saver, collectives->rank());
    saver.Release();
  });
}

TEST(BegunSaveTest, HoldsWhatTheStateWas) {
  const TemporaryDirectory dir;
  OnTwoRanks(dir.path(), nullptr, [&](Saver& saver, int64_t rank) {
    for (const int64_t step : {1, 2, 3}) {
      State state = StateOf(rank, 2, step);
      saver.Begin(step, state);
      saver.AwaitCopy();
      for (const fsdp::LocalShard& slice : state.tensors) {
        slice.local.zero_();  // as the next optimizer step would
      }
      EXPECT_TRUE(saver.Finish().ends_with("/step-" + std::to_string(step)));
      EXPECT_FALSE(saver.HasEnded());  // there is none any more
    }
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 3), 3);
}

TEST(BegunSaveTest, FailsOnAllRanksAndCanBeTriedAgain) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<FullForOne>("__1_0.distcp");
  std::vector<std::string> failures(2);
  OnTwoRanks(dir.path(), disk, [&](Saver& saver, int64_t rank) {
    const State state = StateOf(rank, 2, 7);
    saver.Begin(7, state);
    try {
      saver.Finish();
      ADD_FAILURE() << "the disk is full";
    } catch (const CheckpointError& error) {
      failures[static_cast<size_t>(rank)] = error.what();
      EXPECT_EQ(error.error_number(), ENOSPC);
    }
    if (rank == 0) {
      disk->is_full = false;
    }
    saver.Begin(8, StateOf(rank, 2, 8));
    saver.Finish();
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 8);
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_NE(failures[0].find("step 7 failed: rank 1: "), std::string::npos) << failures[0];
}

TEST(BegunSaveTest, IsPublishedIfRank0SaysSoWhateverAnotherRankHasHeard) {
  const TemporaryDirectory dir;
  std::vector<std::string> paths(2);
  OnTwoRanks<LosesTheWay>(dir.path(), nullptr, [&](Saver& saver, int64_t rank) {
    saver.Begin(4, StateOf(rank, 2, 4));
    paths[static_cast<size_t>(rank)] = saver.Finish();
  });
  EXPECT_EQ(paths, (std::vector<std::string>{dir / "step-4", dir / "step-4"}));
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 4);
}

/// On rank 1: never comes to the others. They wait for it until they are told not to.
class NeverArrives : public OwnCollectives {
 public:
  explicit NeverArrives(const std::shared_ptr<fsdp::Collectives>& collectives)
      : OwnCollectives(collectives), is_absent_(collectives->rank() == 1) {}
  std::string Ask(const std::string& /*mine*/, const Answer& /*answer*/) override {
    if (is_absent_) {
      throw CheckpointError("the store is gone", kChannelLost);
    }
    throw CheckpointError(why_.get_future().get());
  }
  std::string Broadcast(const std::string& /*mine*/) override {
    throw CheckpointError("the store is gone", kChannelLost);
  }
  void Cancel(const CheckpointError& why) override {
    if (!is_absent_) {
      why_.set_value(why);
    }
  }
  bool IsLost() const override { return is_absent_; }

 private:
  const bool is_absent_;
  std::promise<CheckpointError> why_;
};

TEST(BegunSaveTest, WhoHasLostTheWayIsNotWaitedFor) {
  const TemporaryDirectory dir;
  std::vector<std::string> failures(2);
  OnTwoRanks<NeverArrives>(dir.path(), nullptr, [&](Saver& saver, int64_t rank) {
    saver.Begin(4, StateOf(rank, 2, 4));
    if (rank == 1) {
      EXPECT_TRUE(saver.AwaitEnd(std::chrono::steady_clock::now() + std::chrono::minutes(1)));
    }
    EXPECT_EQ(saver.HasLostTheWay(), rank == 1);
    saver.Cancel(CheckpointError("rank 1 has lost the way", kChannelLost));
    try {
      saver.Finish();
      ADD_FAILURE() << "nobody has heard of rank 1's part";
    } catch (const CheckpointError& error) {
      failures[static_cast<size_t>(rank)] = error.what();
      EXPECT_EQ(error.error_number(), kChannelLost);
    }
  });
  EXPECT_EQ(failures[0], failures[1]);
  EXPECT_NE(failures[0].find("step 4 failed: rank 1 has lost the way"), std::string::npos)
      << failures[0];
  EXPECT_EQ(FindSteps(dir.path()).size(), 0U);
}

TEST(BegunSaveTest, WhatIsBeingRemovedIsWaitedForIfThereIsNoRoomWithoutIt) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<RoomAfterRemoval>();
  OnTwoRanks(dir.path(), disk, [&](Saver& saver, int64_t rank) {
    for (const int64_t step : {1, 2, 3}) {  // two are kept
      saver.Begin(step, StateOf(rank, 2, step));
      saver.Finish();
    }
    saver.Save(4, StateOf(rank, 2, 4));
  });
  EXPECT_TRUE(disk->was_full);
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 4);
}

TEST(BegunSaveTest, WhatIsBeingRemovedForEverIsGivenUpByAllRanks) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<SlowRemoval>();
  OnTwoRanks(
      dir.path(), disk,
      [&](Saver& saver, int64_t rank) {
        for (const int64_t step : {1, 2, 3}) {  // two are kept
          saver.Begin(step, StateOf(rank, 2, step));
          saver.Finish();
        }
        disk->is_full = true;
        try {
          saver.Save(4, StateOf(rank, 2, 4));
          ADD_FAILURE() << "there is no room";
        } catch (const CheckpointError& error) {
          EXPECT_EQ(error.error_number(), ECANCELED);
          EXPECT_THAT(error.what(), testing::HasSubstr("no time to wait until old checkpoints"));
          EXPECT_THAT(error.what(), testing::HasSubstr("the disk is full"));
        }
        if (rank == 0) {
          disk->LetGo();
        }
      },
      [] { return true; });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 3);
}

TEST(BegunSaveTest, WhatItHasReplacedHasLeftBeforeItIsWrittenAgain) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<SlowRemoval>("/step-5.tmp-");
  std::atomic<bool> has_waited{false};
  OnTwoRanks(
      dir.path(), disk,
      [&](Saver& saver, int64_t rank) {
        saver.Begin(5, StateOf(rank, 2, 5));
        EXPECT_TRUE(saver.Finish().ends_with("/step-5"));
        EXPECT_FALSE(has_waited);
        saver.Begin(5, StateOf(rank, 2, 5));
        saver.AwaitCopy();
        EXPECT_TRUE(saver.Finish().ends_with("/step-5"));
        EXPECT_TRUE(has_waited);
      },
      [&] {
        if (!has_waited.exchange(true)) {
          disk->LetGo();
        }
        return false;
      });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 5);
}

TEST(BegunSaveTest, IsSaidAndFollowedByOthersWhileOldCheckpointsAreBeingRemoved) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<SlowRemoval>();
  OnTwoRanks(dir.path(), disk, [&](Saver& saver, int64_t rank) {
    for (const int64_t step : {1, 2, 3, 4, 5}) {
      saver.Begin(step, StateOf(rank, 2, step));
      EXPECT_TRUE(saver.Finish().ends_with("/step-" + std::to_string(step)));
      EXPECT_GT(saver.save_time().count(), 0);
    }
    if (rank == 0) {
      EXPECT_TRUE(FindSteps(dir.path()).size() == 2) << "what is being removed counts as one";
      int left = 0;
      for (const std::string& name : ListDirectory(dir.path())) {
        left += LeftoverStep(name, "delete-").has_value();
      }
      EXPECT_EQ(left, 3);
      disk->LetGo();
    }
  });
  EXPECT_THAT(ListDirectory(dir.path()),
              testing::ElementsAre(".claim", ".lock", "latest", "step-4", "step-5"));
}

TEST(BegunSaveTest, FileSystemThatHangsHoldsUpNeitherItsBeginningNorTheCopy) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<Hung>();
  OnTwoRanks(dir.path(), disk, [&](Saver& saver, int64_t rank) {
    State state = StateOf(rank, 2, 3);
    saver.Begin(3, state);
    saver.AwaitCopy();
    for (const fsdp::LocalShard& slice : state.tensors) {
      slice.local.zero_();
    }
    if (rank == 0) {
      EXPECT_FALSE(saver.HasEnded());
      disk->LetGo();
    }
    EXPECT_TRUE(saver.Finish().ends_with("/step-3"));
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 3);
}

TEST(BegunSaveTest, DirectoryThatAnotherJobHasTakenIsWhatFinishSays) {
  const TemporaryDirectory dir;
  OnTwoRanks(dir.path(), nullptr, [&](Saver& saver, int64_t rank) {
    if (rank == 0) {
      ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& other) {
        SaverOptions options = OptionsOf(dir.path(), GroupOf(other));
        options.job_id = "another";
        options.takes_over = true;
        SaveOnce(options, 1, StateOf(0, 1, 1));
      });
    }
    saver.Begin(2, StateOf(rank, 2, 2));
    EXPECT_THROW(saver.Finish(), ClaimHeldError) << rank;
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 1);
}

TEST(BegunSaveTest, WithoutRoomNothingIsWrittenAndBothNumbersAreSaid) {
  const TemporaryDirectory dir;
  const auto disk = std::make_shared<SmallDisk>();
  std::vector<std::string> failures(2);
  OnTwoRanks(dir.path(), disk, [&](Saver& saver, int64_t rank) {
    if (rank == 0) {
      disk->free_bytes = 300;
    }
    for (const bool is_begun : {true, false}) {
      try {
        const State state = StateOf(rank, 2, 7);
        if (is_begun) {
          saver.Begin(7, state);
          saver.Finish();
        } else {
          saver.Save(7, state);
        }
        ADD_FAILURE() << "there is no room";
      } catch (const CheckpointError& error) {
        EXPECT_EQ(error.error_number(), ENOSPC);
        failures[static_cast<size_t>(rank)] = error.what();
      }
    }
  });
  EXPECT_EQ(disk->made, 0);
  EXPECT_EQ(failures[0], failures[1]);
  // The values: twice 35 and 5 of float32, 24 of bfloat16, a step; then two small objects.
  const std::string& said = failures[0];
  const size_t at = said.find("the disk is full; ");
  ASSERT_NE(at, std::string::npos) << said;
  const int64_t needed = std::stoll(said.substr(at + std::string("the disk is full; ").size()));
  EXPECT_GE(needed, (35 + 35 + 5 + 1) * 4 + 24 * 2);
  EXPECT_LT(needed, 4096);
  EXPECT_NE(said.find(" bytes are needed, 300 bytes are free; free space"), std::string::npos)
      << said;
}

TEST(BegunSaveTest, OneAtATime) {
  const TemporaryDirectory dir;
  OnTwoRanks(dir.path(), nullptr, [&](Saver& saver, int64_t rank) {
    EXPECT_THROW(saver.Finish(), c10::Error);
    saver.Begin(1, StateOf(rank, 2, 1));
    EXPECT_THROW(saver.Begin(2, StateOf(rank, 2, 2)), c10::Error);
    saver.Finish();
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 1);
}

}  // namespace
}  // namespace fsdprun::checkpoint
