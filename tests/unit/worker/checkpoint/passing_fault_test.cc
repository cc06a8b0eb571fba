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

#include "tests/unit/base/address_sanitizer.h"
#include "tests/unit/formats/checkpoint/path_fault.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"
#include "worker/checkpoint/exchange.h"

namespace fsdprun::checkpoint {
namespace {

#if defined(__SANITIZE_THREAD__)
constexpr bool kHasThreadSanitizer = true;
#elif defined(__has_feature)
constexpr bool kHasThreadSanitizer = __has_feature(thread_sanitizer);
#else
constexpr bool kHasThreadSanitizer = false;
#endif

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

TEST(PassingFaultTest, NothingIsPublishedWhileTheNewestNumberCannotBeRead) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
    {
      const PathFault fault(PathFault::kOpen, "step-2/fsdprun.json", ESTALE);
      EXPECT_EQ(NumberOf([&] { saver.Save(3, StateOf(0, 1, 3)); }), ESTALE);
    }
    EXPECT_FALSE(std::filesystem::exists(dir / "step-3"));
    saver.Save(3, StateOf(0, 1, 3));
  });
  EXPECT_EQ(json::parse(std::ifstream(dir / "step-3/fsdprun.json"))["sequence"], 3);
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
    if (!kHasAddressSanitizer && !kHasThreadSanitizer) {  // which end the process
      // More than the address space.
      EXPECT_EQ(number([] { at::empty({int64_t{1} << 50}, at::kByte); }), ENOMEM);
    }
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
