// Checkpoints that their holder removes, to make room, while another start reads them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

/// As Prune does it.
void Remove(const std::string& path) {
  std::filesystem::rename(path, path + ".delete-0123456789abcdef");
}

TEST(CheckpointRemovalTest, NewestThatIsStillThereIsLoadedIfTheChosenOneIsRemoved) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1, 2, 3});
  std::vector<std::string> warnings;
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives, &warnings);
    State state = StateOf(collectives->rank(), 2, -1);
    std::vector<int64_t> tried;
    const auto loaded = LoadChosen(
        group, [&](const Unloadable&) { return FindResume(dir.path(), "auto", group); },
        [&](const Candidate& candidate) {
          tried.push_back(candidate.step);
          if (collectives->rank() == 0 && candidate.step > 1) {
            Remove(candidate.path);
          }
          NewRun(group);  // all ranks wait for rank 0
          Load(candidate, state, group);
        });
    EXPECT_THAT(tried, ElementsAre(3, 2, 1));
    ASSERT_TRUE(loaded);
    EXPECT_EQ(loaded->step, 1);
    EXPECT_EQ(json::parse(state.training_state_json)["step"], 1);
  });
  EXPECT_THAT(warnings, ElementsAre(HasSubstr("step-3 was removed while it was being loaded"),
                                    HasSubstr("step-2 was removed while it was being loaded")));
}

TEST(CheckpointRemovalTest, LossOfTheOnlyOneIsToldAndNothingIsBegunAnew) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives);
    State state = StateOf(0, 1, -1);
    EXPECT_THAT(MessageOf<CheckpointError>([&] {
                  LoadChosen(
                      group,
                      [&](const Unloadable&) { return FindResume(dir.path(), "auto", group); },
                      [&](const Candidate& candidate) {
                        Remove(candidate.path);
                        Load(candidate, state, group);
                      });
                }),
                AllOf(HasSubstr(dir / "step-1 was removed while"), HasSubstr("there is no other")));
    EXPECT_FALSE(LoadChosen(
        group, [](const Unloadable&) { return std::nullopt; }, [](const Candidate&) { FAIL(); }));
  });
}

TEST(CheckpointRemovalTest, AttemptsAreFewAndOtherErrorsAreNotTriedAgain) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const auto attempts = [&](const std::string& path) {
      int count = 0;
      Candidate candidate;
      candidate.path = path;
      EXPECT_EQ(MessageOf<CheckpointError>([&] {
                  LoadChosen(
                      GroupOf(collectives),
                      [&](const Unloadable&) { return std::optional<Candidate>(candidate); },
                      [&](const Candidate&) {
                        ++count;
                        throw CheckpointError("spoilt");
                      });
                }),
                "spoilt");
      return count;
    };
    EXPECT_EQ(attempts(dir / "step-1"), 1);
    EXPECT_EQ(attempts(dir / "absent"), 5);
  });
}

TEST(CheckpointRemovalTest, ListIsMadeAgainIfOneOfItIsRemovedBeforeItIsVerified) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2, 3});
  Remove(dir / "step-3");
  std::filesystem::create_directory(dir / "step-9");  // of which a warning comes after the listing
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Group group = GroupOf(collectives);
    group.warn = [&](const std::string& text) {
      warnings.push_back(text);
      if (warnings.size() == 1) {
        Remove(dir / "step-2");
        std::filesystem::rename(dir / "step-3.delete-0123456789abcdef", dir / "step-3");
      }
    };
    EXPECT_EQ(FindResume(dir.path(), "auto", group)->step, 3);
  });
  EXPECT_THAT(warnings, AllOf(SizeIs(2), testing::Each(HasSubstr("step-9: it is incomplete"))));
}

}  // namespace
}  // namespace fsdprun::checkpoint
