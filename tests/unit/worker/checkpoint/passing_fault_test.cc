// Faults that may pass say nothing against the checkpoint that is being read.
#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <vector>

#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

/// The error number of what `attempt` throws; fails the test if it throws nothing.
int NumberOf(const std::function<void()>& attempt) {
  try {
    attempt();
  } catch (const CheckpointError& error) {
    return error.error_number();
  }
  ADD_FAILURE() << "expected an error";
  return 0;
}

TEST(PassingFaultTest, LookThatFailsForNowTakesNoOlderCheckpoint) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  for (const bool passes : {true, false}) {
    std::vector<std::string> told;
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      std::optional<PathFault> fault;
      fault.emplace(PathFault::kOpen, "step-2/.metadata", EMFILE);
      Group group = GroupOf(collectives);
      group.warn = [&](const std::string& text) {
        told.push_back(text);
        if (passes) {
          fault.reset();
        }
      };
      const auto find = [&] {
        return FindResume(dir.path(), "auto", group, Verify::kStructure)->step;
      };
      if (passes) {
        EXPECT_EQ(find(), 2);
      } else {
        EXPECT_EQ(NumberOf(find), EMFILE);
      }
    });
    EXPECT_THAT(told, SizeIs(passes ? 1 : 2));
    EXPECT_THAT(told, Each(EndsWith("; trying again")));
  }
}

TEST(PassingFaultTest, ListThatCannotBeMadeForNowTakesNoOlderCheckpoint) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    std::optional<PathFault> fault;
    Group group = GroupOf(collectives);
    group.warn = [&](const std::string& text) {
      EXPECT_THAT(text, HasSubstr("step-2/fsdprun.json"));
      EXPECT_THAT(text, EndsWith("; trying again"));
      fault.reset();
    };
    fault.emplace(PathFault::kOpen, "step-2/fsdprun.json", ESTALE);
    EXPECT_EQ(FindOfJob(dir.path(), {"job", true}, group)->step, 2);
    fault.emplace(PathFault::kOpen, "step-2/fsdprun.json", ESTALE);
    EXPECT_EQ(CountPublications(dir.path(), group), 2);
  });
}

/// Counts the files of ranks that are made.
class CountsRankFiles : public FileSystem {
 public:
  int count = 0;

 protected:
  int Intercept(const Effect& effect) override {
    count += effect.name == "create" && effect.path.ends_with(".distcp");
    return 0;
  }
};

int64_t NumberOfPublication(const std::string& checkpoint) {
  return json::parse(std::ifstream(checkpoint + "/fsdprun.json"))["sequence"];
}

TEST(PassingFaultTest, NothingIsWrittenUntilTheNewestNumberCouldBeRead) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  std::vector<std::string> told;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const auto disk = std::make_shared<CountsRankFiles>();
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives, &told));
    options.file_system = disk;
    Saver saver(options);
    {
      const PathFault fault(PathFault::kOpen, "step-2/fsdprun.json", ESTALE);
      EXPECT_EQ(NumberOf([&] { saver.Save(3, StateOf(0, 1, 3)); }), ESTALE);
    }
    EXPECT_EQ(disk->count, 0);
    EXPECT_FALSE(std::filesystem::exists(dir / "step-3"));
    saver.Save(3, StateOf(0, 1, 3));
  });
  EXPECT_THAT(told, SizeIs(2));
  EXPECT_THAT(told, Each(EndsWith("; trying again")));
  EXPECT_EQ(NumberOfPublication(dir / "step-3"), 3);
}

TEST(PassingFaultTest, WhoHasPublishedKnowsTheNextNumberWhateverCannotBeRead) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
    saver.Save(3, StateOf(0, 1, 3));
    {
      const PathFault fault(PathFault::kOpen, "step-3/fsdprun.json", ESTALE);
      saver.Save(4, StateOf(0, 1, 4));
    }
    {
      const PathFault fault(PathFault::kLook, "step-2", EMFILE);
      saver.Save(5, StateOf(0, 1, 5));
    }
  });
  EXPECT_EQ(NumberOfPublication(dir / "step-4"), 4);
  EXPECT_EQ(NumberOfPublication(dir / "step-5"), 5);
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 5);
}

/// Of a start, while its own files are written: another program adds a checkpoint.
TEST(PassingFaultTest, NumberIsAboveThatOfACheckpointThatWasPutThere) {
  const TemporaryDirectory dir;
  const TemporaryDirectory other;
  SaveSteps(other.path(), 1, {1, 2, 3, 9});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
    saver.Save(1, StateOf(0, 1, 1));
    std::filesystem::rename(other / "step-9", dir / "step-9");
    saver.Save(2, StateOf(0, 1, 2));
  });
  EXPECT_EQ(NumberOfPublication(dir / "step-2"), 5);
}

TEST(PassingFaultTest, MemoryThatIsShortIsKnownByLibTorchsWords) {
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const auto number = [&](const std::function<void()>& attempt) {
      return NumberOf([&] {
        AttemptOnAll(GroupOf(collectives), [&] {
          attempt();
          return std::string();
        });
      });
    };
    // More than the address space.
    EXPECT_EQ(number([] { at::empty({int64_t{1} << 50}, at::kByte); }), ENOMEM);
    EXPECT_EQ(number([] { throw std::bad_alloc(); }), ENOMEM);
    EXPECT_EQ(number([] { TORCH_CHECK(false, "another"); }), kNotOfFiles);
  });
}

TEST(PassingFaultTest, WhatSaysNothingOfFilesIsThrownAndTheOlderCheckpointNotLoaded) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  std::vector<std::string> told;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives, &told);
    std::vector<int64_t> tried;
    const std::string message = MessageOf<CheckpointError>([&] {
      LoadChosen(
          group,
          [&](const Unloadable& unloadable) {
            return FindResume(dir.path(), "auto", group, Verify::kStructure, unloadable);
          },
          [&](const Candidate& candidate) {
            tried.push_back(candidate.step);
            AttemptOnAll(group, []() -> std::string {
              TORCH_CHECK(false, "a device is gone");
              return {};
            });
          });
    });
    EXPECT_THAT(message, HasSubstr("a device is gone"));
    EXPECT_THAT(tried, Each(2));
    EXPECT_THAT(tried, SizeIs(3));
  });
  EXPECT_THAT(told, Not(Contains(HasSubstr("taking the older"))));
}

}  // namespace
}  // namespace fsdprun::checkpoint
