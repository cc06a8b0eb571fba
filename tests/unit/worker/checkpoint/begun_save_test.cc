// Saves that are made beside the caller.

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

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
  std::vector<std::string> Gather(const std::string& mine) override {
    return GatherTexts(group_, mine);
  }
  std::string Broadcast(const std::string& mine) override { return BroadcastText(group_, mine); }
  void Cancel() override {}

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

/// Runs `body(saver, rank)` on two ranks; `file_system`: of both.
void OnTwoRanks(const std::string& dir, const std::shared_ptr<FileSystem>& file_system,
                const std::function<void(Saver&, int64_t)>& body) {
  ThreadRanks background(2);
  std::vector<std::shared_ptr<fsdp::Collectives>> own(2);
  background.Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    own[static_cast<size_t>(collectives->rank())] = collectives;
  });
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.file_system = file_system;
    options.background =
        std::make_shared<OwnCollectives>(own[static_cast<size_t>(collectives->rank())]);
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
