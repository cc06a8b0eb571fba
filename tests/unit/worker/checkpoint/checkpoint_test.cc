#include "worker/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointTest, LoadsAtAnyWorldSize) {
  for (int64_t writers = 1; writers <= 3; ++writers) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), writers, {4});
    for (int64_t readers = 1; readers <= 4; ++readers) {
      EXPECT_EQ(LoadAndCheck(dir.path(), readers), 4);
      EXPECT_EQ(LoadAndCheck(dir.path(), readers, Verify::kStructure), 4);
    }
  }
}

TEST(CheckpointTest, KeepsTheNewestAndPointsAtIt) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1, 2, 3, 4}, 2);
  EXPECT_THAT(ListDirectory(dir.path()),
              ::testing::ElementsAre(".claim", ".lock", "latest", "step-3", "step-4"));
  std::string latest;
  std::ifstream(dir / "latest") >> latest;
  EXPECT_EQ(latest, "step-4");
}

TEST(CheckpointTest, NewestIsWhatWasPublishedLast) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {500});
  SaveSteps(dir.path(), 1, {10}, 1);  // a new run in the same directory
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 10);
}

TEST(CheckpointTest, SameStepIsReplaced) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {5});
  SaveSteps(dir.path(), 3, {5});
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 5);
  EXPECT_TRUE(FileExists(dir / "step-5/__2_0.distcp"));
}

TEST(CheckpointTest, NothingThereMeansStartFromScratch) {
  const TemporaryDirectory dir;
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), -1);
  EXPECT_EQ(LoadAndCheck(dir / "absent", 2), -1);
  EXPECT_THAT(MessageOf<CheckpointError>(
                  [&] { LoadAndCheck(dir.path(), 2, Verify::kFull, dir / "absent"); }),
              HasSubstr("absent: no such directory"));
  EXPECT_THAT(
      MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 2, Verify::kFull, dir.path()); }),
      HasSubstr("is no checkpoint"));
}

TEST(CheckpointTest, MissingAndMisshapedKeysAreNamed) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives);
    const Candidate candidate = *FindResume(dir.path(), "auto", group);
    State state = StateOf(0, 1, -1);
    state.tensors[0].fqn = "model.other";
    EXPECT_THAT(MessageOf<MismatchError>([&] { Load(candidate, state, group); }),
                HasSubstr("lacks model.other"));
    state = StateOf(0, 1, -1);
    state.tensors[2].global_shape = {6};
    EXPECT_THAT(MessageOf<MismatchError>([&] { Load(candidate, state, group); }),
                HasSubstr("model.norm.weight (stored [5], expected [6])"));
  });
}

TEST(CheckpointTest, DtypeIsConvertedOnlyIfExact) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives);
    const Candidate candidate = *FindResume(dir.path(), "auto", group);
    State state = StateOf(0, 1, -1);
    state.tensors[1].local = state.tensors[1].local.to(at::kFloat);
    Load(candidate, state, group);
    EXPECT_TRUE(state.tensors[1].local.equal(Whole(1, 1).to(at::kFloat)));
    state.tensors[0].local = state.tensors[0].local.to(at::kBool);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { Load(candidate, state, group); }),
                HasSubstr("model.embed.weight: it is stored as Float"));
  });
}

TEST(CheckpointTest, FileInTheWayIsNamed) {
  const TemporaryDirectory dir;
  std::ofstream(dir / "file") << "x";
  for (const std::string& path : {dir / "file", dir / "file/below"}) {
    EXPECT_THAT(MessageOf<CheckpointError>([&] { CheckWritable(path); }),
                HasSubstr("file where a directory is needed"));
  }
  CheckWritable(dir / "new/dir");
  EXPECT_TRUE(ListDirectory(dir / "new/dir").empty());
}

TEST(CheckpointTest, PythonReadsOursAndWeReadPythons) {
  const char* python = std::getenv("FSDPRUN_PYTHON");
  const char* script = std::getenv("FSDPRUN_DCP_SCRIPT");
  if (python == nullptr || script == nullptr) {
    GTEST_SKIP() << "needs FSDPRUN_PYTHON and FSDPRUN_DCP_SCRIPT (ctest sets them)";
  }
  const TemporaryDirectory dir;
  // One process for all: most of its time goes into importing torch.
  std::string command = std::string(python) + " " + script + " " + (dir / "step-4");
  std::vector<std::unique_ptr<TemporaryDirectory>> ours;
  for (int64_t writers = 1; writers <= 3; ++writers) {
    ours.push_back(std::make_unique<TemporaryDirectory>());
    SaveSteps(ours.back()->path(), writers, {4});
    command += " " + (*ours.back() / "step-4");
  }
  ASSERT_EQ(std::system(command.c_str()), 0);
  for (int64_t readers = 1; readers <= 3; ++readers) {
    EXPECT_EQ(LoadAndCheck(dir.path(), readers), 4);
  }
  // norm.weight of step 4 begins with 64.0, and so do its bytes.
  const float first[] = {64, 65, 66};
  for (const std::string& file : FilesOf(dir / "step-4")) {
    const std::string bytes = ReadWholeFile(file, 1 << 20);
    const size_t at = bytes.find(std::string_view(reinterpret_cast<const char*>(first), 8));
    if (at != std::string::npos) {
      FlipBit(file, 8 * at);
    }
  }
  EXPECT_THAT(MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 2); }),
              HasSubstr("CRC-32 does not match"));
}

}  // namespace
}  // namespace fsdprun::checkpoint
