#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/step_list.h"
#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/archive/zip_archive.h"
#include "fsdp_runtime/plan/box.h"
#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::HasSubstr;

TEST(CheckpointDamageTest, DamagedFileIsNamedAndTheOlderOneUsed) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1, 2});
  std::filesystem::resize_file(dir / "step-2/__1_0.distcp", 100);
  std::vector<std::string> warnings;
  EXPECT_EQ(LoadAndCheck(dir.path(), 2, Verify::kFull, "auto", &warnings), 1);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("step-2/__1_0.distcp is truncated"));
  EXPECT_THAT(warnings[0], HasSubstr("older " + (dir / "step-1")));
  EXPECT_THAT(MessageOf<CheckpointError>(
                  [&] { LoadAndCheck(dir.path(), 2, Verify::kFull, dir / "step-2"); }),
              HasSubstr("truncated"));
}

TEST(CheckpointDamageTest, FlippedTensorByteNamesFileAndItem) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  const json manifest = json::parse(std::ifstream(dir / "step-1/fsdprun.json"));
  const json& item = manifest["files"]["__0_0.distcp"]["items"].back();
  FlipBit(dir / "step-1/__0_0.distcp", 8 * (item["offset"].get<uint64_t>() + 700));
  for (const Verify verify : {Verify::kFull, Verify::kStructure}) {
    const std::string message =
        MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 2, verify); });
    EXPECT_THAT(message, HasSubstr("__0_0.distcp"));
    EXPECT_THAT(message, HasSubstr(item["key"].get<std::string>()));
  }
}

/// Fewer, where a variable says so: with a sanitizer each takes long.
int CountOfFlips() {
  const char* text = std::getenv("FSDPRUN_FLIPS");
  return text == nullptr ? 300 : std::stoi(text);
}

TEST(CheckpointDamageTest, BitFlipsAreFoundOrHarmless) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1});
  std::mt19937_64 random(3);
  const std::vector<std::string> files = FilesOf(dir / "step-1");
  const int count = CountOfFlips();
  int found = 0;
  for (int i = 0; i < count; ++i) {
    const std::string& file = files[random() % files.size()];
    const uint64_t bit = random();
    FlipBit(file, bit);
    try {
      EXPECT_EQ(LoadAndCheck(dir.path(), 1), 1);  // checks every value
    } catch (const CheckpointError&) {
      ++found;
    }
    FlipBit(file, bit);
  }
  EXPECT_GT(found, count * 8 / 10);
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 1);
}

/// As a start does it: what is damaged is found while it is loaded. Returns the step.
int64_t LoadNewestAndCheck(const std::string& dir, int64_t size,
                           std::vector<std::string>* warnings = nullptr) {
  std::atomic<int64_t> step{-1};
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives, warnings);
    State state = StateOf(collectives->rank(), size, -1);
    const auto loaded = LoadChosen(
        group,
        [&](const Unloadable& unloadable) {
          return FindResume(dir, "auto", group, Verify::kStructure, unloadable);
        },
        [&](const Candidate& candidate) { Load(candidate, state, group); });
    for (size_t i = 0; i < state.tensors.size(); ++i) {
      const fsdp::LocalShard& slice = state.tensors[i];
      EXPECT_TRUE(slice.local.equal(PartOf(Whole(i, loaded->step), slice))) << slice.fqn;
    }
    EXPECT_EQ(json::parse(state.training_state_json)["step"], loaded->step);
    step = loaded->step;
  });
  return step;
}

TEST(CheckpointDamageTest, DamageThatALoadFindsIsPassedOverOnAllRanksAlike) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1, 2, 3});
  for (const int64_t step : {3, 2}) {
    const std::string path = dir / ("step-" + std::to_string(step));
    FlipBit(path + "/__1_0.distcp", 8 * 2000);  // of the second rank's, which others do not read
    std::vector<std::string> warnings;
    EXPECT_EQ(LoadNewestAndCheck(dir.path(), 2, &warnings), step - 1);
    // What was taken at first, and turned out to be damaged too, has been told as well.
    ASSERT_EQ(warnings.size(), step == 3 ? 1U : 3U);
    EXPECT_THAT(warnings.back(), HasSubstr("skipped " + path + ": rank 1: "));
    EXPECT_THAT(warnings.back(), HasSubstr("__1_0.distcp"));
    EXPECT_THAT(warnings.back(),
                HasSubstr("taking the older " + (dir / ("step-" + std::to_string(step - 1)))));
  }
  FlipBit(dir / "step-1/__0_0.distcp", 8 * 2000);
  ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const std::string message = MessageOf<CheckpointError>([&] {
      State state = StateOf(collectives->rank(), 2, -1);
      const Group group = GroupOf(collectives);
      LoadChosen(
          group,
          [&](const Unloadable& unloadable) {
            return FindResume(dir.path(), "auto", group, Verify::kStructure, unloadable);
          },
          [&](const Candidate& candidate) { Load(candidate, state, group); });
    });
    EXPECT_THAT(message, HasSubstr("none of the 3 checkpoints is valid; the newest: rank 1: "));
  });
}

TEST(CheckpointDamageTest, FaultThatMayPassIsTriedAgainAndIsNoDamageUnlessTheDiskSaysSo) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  struct Case {
    int error;
    int failing_loads;
    int64_t loaded;  // -1: the error is thrown
  };
  for (const Case& expected : {Case{ESTALE, 1, 2}, Case{ESTALE, 3, -1}, Case{EIO, 3, 1}}) {
    std::vector<std::string> warnings;
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      const Group group = GroupOf(collectives, &warnings);
      State state = StateOf(0, 1, -1);
      int loads = 0;
      const auto load = [&] {
        return LoadChosen(
                   group,
                   [&](const Unloadable& unloadable) {
                     return FindResume(dir.path(), "auto", group, Verify::kStructure, unloadable);
                   },
                   [&](const Candidate& candidate) {
                     if (++loads <= expected.failing_loads) {
                       throw CheckpointError("cannot read " + candidate.path, expected.error);
                     }
                     Load(candidate, state, group);
                   })
            ->step;
      };
      if (expected.loaded < 0) {
        EXPECT_EQ(MessageOf<CheckpointError>(load), "cannot read " + (dir / "step-2"));
      } else {
        EXPECT_EQ(load(), expected.loaded);
      }
    });
    ASSERT_FALSE(warnings.empty());
    EXPECT_EQ(warnings.front(), "cannot read " + (dir / "step-2") + "; trying again");
  }
}

TEST(CheckpointDamageTest, BitFlipsAreFoundOrHarmlessWhileLoading) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1, 2});
  std::mt19937_64 random(4);
  const std::vector<std::string> files = FilesOf(dir / "step-2");
  const int count = CountOfFlips();
  int found = 0;
  for (int i = 0; i < count; ++i) {
    const std::string& file = files[random() % files.size()];
    const uint64_t bit = random();
    FlipBit(file, bit);
    found += LoadNewestAndCheck(dir.path(), 1 + i % 2) == 1 ? 1 : 0;
    FlipBit(file, bit);
  }
  EXPECT_GT(found, count * 8 / 10);
  EXPECT_EQ(LoadNewestAndCheck(dir.path(), 2), 2);
}

/// One tensor, of which a rank has some rows or some columns.
State LargeState(int64_t rank, int64_t size, bool has_columns) {
  constexpr int64_t kSide = 400;
  const int64_t begin = kSide * rank / size;
  const int64_t count = kSide * (rank + 1) / size - begin;
  fsdp::LocalShard slice;
  slice.fqn = "model.large";
  slice.global_shape = {kSide, kSide};
  slice.boxes = {has_columns ? fsdp::Box{{0, begin}, {kSide, count}}
                             : fsdp::Box{{begin, 0}, {count, kSide}}};
  slice.local = PartOf(at::arange(kSide * kSide, at::kFloat), slice);
  State state;
  state.tensors.push_back(std::move(slice));
  return state;
}

/// By this process, from all files, since it began.
int64_t BytesRead() {
  std::ifstream counts("/proc/self/io");
  std::string name;
  int64_t count = 0;
  counts >> name >> count;
  EXPECT_EQ(name, "rchar:");
  return count;
}

/// As Python leaves a checkpoint of one rank and one float32 tensor, the last item: the archive has
/// a CRC-32, and there is no manifest.
void MakeForeign(const std::string& path, const std::vector<int64_t>& sizes) {
  if (!std::filesystem::exists(path + "/fsdprun.json")) {
    return;
  }
  const json manifest = json::parse(std::ifstream(path + "/fsdprun.json"));
  const auto offset =
      manifest["files"]["__0_0.distcp"]["items"].back()["offset"].get<std::streamoff>();
  const size_t prefix_bytes = FrameTensor(DType::kFloat32, sizes, kNoCrc32).prefix.size();
  const auto byte_count = static_cast<size_t>(4 * fsdp::plan::numel_of(sizes));
  std::fstream file(path + "/__0_0.distcp", std::ios::in | std::ios::out | std::ios::binary);
  std::string data(byte_count, 0);
  file.seekg(offset + static_cast<std::streamoff>(prefix_bytes));
  file.read(data.data(), static_cast<std::streamsize>(byte_count));
  const BlobFrame frame =
      FrameTensor(DType::kFloat32, sizes, fsdp::archive::update_crc32(0, data.data(), byte_count));
  file.seekp(offset);
  file << frame.prefix << data << frame.suffix;
  ASSERT_TRUE(file.flush().good());
  std::filesystem::remove(path + "/fsdprun.json");
}

// Each rank reads less than half of what was written as one piece, so that none of them would hash
// all of it for its own.
TEST(CheckpointDamageTest, BlobThatManyRanksReadInPartIsVerifiedByOneOfThem) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaveOnce(OptionsOf(dir.path(), GroupOf(collectives)), 1, LargeState(0, 1, false));
  });
  for (const bool is_foreign : {false, true}) {
    for (const int64_t size : {1, 3, 4}) {
      for (const bool has_columns : {false, true}) {
        for (const int64_t place : {int64_t{-1}, int64_t{100'000}, int64_t{640'000}}) {
          const uint64_t bit = 8 * static_cast<uint64_t>(std::max<int64_t>(place, 0));
          if (place >= 0) {
            FlipBit(dir / "step-1/__0_0.distcp", bit);
          }
          std::atomic<int> failed{0};
          const int64_t read_before = BytesRead();
          ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
            const Group group = GroupOf(collectives);
            State state = LargeState(collectives->rank(), size, has_columns);
            const at::Tensor expected = state.tensors[0].local.clone();
            state.tensors[0].local.zero_();
            try {
              Load(FindAt(dir / "step-1", group, Verify::kStructure), state, group);
              EXPECT_TRUE(state.tensors[0].local.equal(expected));
            } catch (const CheckpointError& error) {
              EXPECT_THAT(error.what(), HasSubstr("__0_0.distcp"));
              EXPECT_THAT(error.what(), HasSubstr("model.large"));
              ++failed;
            }
          });
          EXPECT_EQ(failed, place < 0 ? 0 : size) << is_foreign << size << has_columns << place;
          if (place < 0 && size > 1 && !has_columns) {  // The rows together, and all once more.
            const double times = static_cast<double>(BytesRead() - read_before) / (4 * 400 * 400);
            EXPECT_GT(times, 1.99) << is_foreign << size;
            EXPECT_LT(times, 2.5) << is_foreign << size;
          }
          if (place >= 0) {
            FlipBit(dir / "step-1/__0_0.distcp", bit);
          }
        }
      }
    }
    MakeForeign(dir / "step-1", {400, 400});
  }
}

TEST(CheckpointDamageTest, RankOpensOnlyTheFilesThatItReads) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives);
    const Candidate candidate = FindResume(dir.path(), "auto", group).value();
    std::filesystem::remove(dir / "step-1/__1_0.distcp");
    State whole = StateOf(0, 1, -1);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { Load(candidate, whole, group); }),
                HasSubstr("cannot read " + (dir / "step-1/__1_0.distcp")));
    State half = StateOf(0, 2, -1);
    Load(candidate, half, group);
    EXPECT_TRUE(half.tensors[0].local.equal(PartOf(Whole(0, 1), half.tensors[0])));
  });
}

TEST(CheckpointDamageTest, StartWithAStepListReadsEachManifestOnce) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1, 2});
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Group group = GroupOf(collectives);
    group.steps = std::make_shared<StepList>();
    EXPECT_EQ(CountPublications(dir.path(), group), 2);
    const std::string manifest = dir / "step-1/fsdprun.json";
    const auto modified = std::filesystem::last_write_time(manifest);
    FlipBit(manifest, 8 * 100);
    std::filesystem::last_write_time(manifest, modified);
    // Read again, it would come first, as one that cannot be read.
    std::vector<std::string> warnings;
    group.warn = [&](const std::string& text) { warnings.push_back(text); };
    EXPECT_EQ(FindResume(dir.path(), "auto", group)->step, 2);
    EXPECT_TRUE(warnings.empty());
    EXPECT_EQ(FindOfJob(dir.path(), {"job", true}, group)->step, 2);
    EXPECT_EQ(CountPublications(dir.path(), group), 2);
  });
}

TEST(CheckpointDamageTest, PipeInPlaceOfAFileIsRefusedAtOnce) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  std::filesystem::remove(dir / "step-1/__0_0.distcp");
  ASSERT_EQ(mkfifo((dir / "step-1/__0_0.distcp").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 1); }),
              HasSubstr("not a regular file"));
}

TEST(CheckpointDamageTest, HostileManifestsAreRefused) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  std::string deep;
  for (int i = 0; i < 100'000; ++i) {
    deep += "{\"a\":";
  }
  std::ofstream(dir / "step-1/fsdprun.json") << deep;
  EXPECT_THAT(MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 1); }),
              HasSubstr("nested deeper"));
  Manifest manifest;
  manifest.files["f"] = {100, "", {{"k", kManifestNumberMax, kManifestNumberMax, ""}}};
  EXPECT_THAT(MessageOf<CheckpointError>([&] { DecodeManifest(EncodeManifest(manifest), "it"); }),
              HasSubstr("the item k outside of it"));
}

TEST(CheckpointDamageTest, ImpossibleNumbersInAManifestAreRefused) {
  for (const auto& [key, field] :
       {std::pair("step", &Manifest::step), std::pair("tokens", &Manifest::tokens),
        std::pair("world_size", &Manifest::world_size),
        std::pair("sequence", &Manifest::sequence)}) {
    for (const int64_t number : {int64_t{-1}, INT64_MIN, kManifestNumberMax + 1, INT64_MAX}) {
      Manifest manifest;
      manifest.*field = number;
      EXPECT_THAT(
          MessageOf<CheckpointError>([&] { DecodeManifest(EncodeManifest(manifest), "it"); }),
          HasSubstr(std::string("it is damaged: ") + key + " = " + std::to_string(number)));
    }
    Manifest manifest;
    manifest.*field = kManifestNumberMax;
    EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), "it"), manifest);
  }
}

TEST(CheckpointDamageTest, GenerationOfAManifestIsAnyWholeNumber) {
  for (const uint64_t generation : {uint64_t{0}, uint64_t{1} << 60, UINT64_MAX}) {
    Manifest manifest;
    manifest.generation = generation;
    EXPECT_EQ(DecodeManifest(EncodeManifest(manifest), "it"), manifest);
  }
  for (const json& number : {json(-1), json(0.5), json("1")}) {
    json value = json::parse(EncodeManifest(Manifest()));
    value["generation"] = number;
    value.erase("manifest_xxh3");
    value["manifest_xxh3"] = HashBytes(value.dump());
    EXPECT_THAT(MessageOf<CheckpointError>([&] { DecodeManifest(value.dump(), "it"); }),
                HasSubstr("it is damaged: generation = " + number.dump()));
  }
}

TEST(CheckpointDamageTest, FilesOfAManifestAreInItsDirectory) {
  for (const char* name : {"", ".", "..", "../f", "/f", "d/f"}) {
    Manifest manifest;
    manifest.files[name] = {};
    EXPECT_THAT(MessageOf<CheckpointError>([&] { DecodeManifest(EncodeManifest(manifest), "it"); }),
                HasSubstr("it is damaged: a file is called \"" + std::string(name) + "\""));
  }
}

// The next number would be one that nobody can read.
TEST(CheckpointDamageTest, NothingIsPublishedAfterTheHighestNumber) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  const std::string path = dir / "step-1/fsdprun.json";
  std::ifstream file(path);
  Manifest manifest = DecodeManifest(std::string(std::istreambuf_iterator<char>(file), {}), path);
  manifest.sequence = kManifestNumberMax;
  std::ofstream(path) << EncodeManifest(manifest);
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    Saver saver(OptionsOf(dir.path(), GroupOf(collectives)));
    EXPECT_THAT(MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(0, 1, 2)); }),
                HasSubstr("sequence 9007199254740992"));
  });
  EXPECT_FALSE(std::filesystem::exists(dir / "step-2"));
}

TEST(CheckpointDamageTest, WithoutAManifestNothingIsComparedWhichIsTold) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  std::vector<std::string> warnings;
  EXPECT_EQ(LoadAndCheck(dir.path(), 2, Verify::kStructure, "auto", &warnings), 1);
  EXPECT_TRUE(warnings.empty());
  std::filesystem::remove(dir / "step-1/fsdprun.json");
  EXPECT_EQ(LoadAndCheck(dir.path(), 2, Verify::kStructure, "auto", &warnings), 1);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_THAT(warnings[0], HasSubstr("nothing tells whether " + (dir / "step-1") + " is damaged"));
  EXPECT_THAT(warnings[0], HasSubstr("no fsdprun.json"));
}

}  // namespace
}  // namespace fsdprun::checkpoint
