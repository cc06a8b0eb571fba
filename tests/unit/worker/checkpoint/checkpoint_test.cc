#include "worker/checkpoint/checkpoint.h"

#include <ATen/ops/arange.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>

#include "tests/unit/worker/checkpoint/temporary_directory.h"
#include "tests/unit/worker/checkpoint/thread_ranks.h"
#include "worker/checkpoint/file_system.h"
#include "worker/checkpoint/manifest.h"

namespace fsdprun::worker::checkpoint {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

struct TensorSpec {
  std::string key;
  std::vector<int64_t> shape;
  at::ScalarType dtype;
};

const TensorSpec kSpecs[] = {
    {"model.embed.weight", {7, 5}, at::kFloat},
    {"model.layers.0.weight", {3, 2, 4}, at::kBFloat16},
    {"model.norm.weight", {5}, at::kFloat},
    {"optim.state.embed.weight.exp_avg", {7, 5}, at::kFloat},
    {"optim.state.embed.weight.step", {}, at::kFloat},
};

int64_t NumelOf(const std::vector<int64_t>& shape) {
  int64_t numel = 1;
  for (const int64_t size : shape) {
    numel *= size;
  }
  return numel;
}

/// The whole tensor number `index` of a checkpoint of `step`: distinct values, exact in bfloat16.
at::Tensor Whole(size_t index, int64_t step) {
  const TensorSpec& spec = kSpecs[index];
  const double base = static_cast<double>(step) + 30.0 * static_cast<double>(index);
  return at::arange(NumelOf(spec.shape), at::TensorOptions().dtype(at::kFloat))
      .add(base)
      .to(spec.dtype);
}

/// Rank `rank` of `size`: uneven flat ranges that ignore rows; filled for `step`, or zero (-1).
State StateOf(int64_t rank, int64_t size, int64_t step) {
  State state;
  for (size_t i = 0; i < std::size(kSpecs); ++i) {
    const int64_t numel = NumelOf(kSpecs[i].shape);
    const bool is_replicated = kSpecs[i].shape.empty();
    fsdp::ShardedSlice slice;
    slice.fqn = kSpecs[i].key;
    slice.global_shape = kSpecs[i].shape;
    slice.flat_begin = is_replicated ? 0 : numel * rank / size;
    slice.flat_end = is_replicated ? 1 : numel * (rank + 1) / size;
    slice.local =
        Whole(i, std::max<int64_t>(step, 0)).slice(0, slice.flat_begin, slice.flat_end).clone();
    if (step < 0) {
      slice.local.zero_();
    }
    state.tensors.push_back(std::move(slice));
  }
  state.param_groups_json = R"([{"lr":0.1,"betas":[0.9,0.95],"params":["embed.weight"]}])";
  state.training_state_json = json{{"step", step}, {"seed", ~uint64_t{0}}}.dump();
  state.tokens = 10 * step;
  return state;
}

/// A file system that fails with `error`, or dies, at the effect number `at`.
class Faulty : public FileSystem {
 public:
  Faulty(int64_t at, int error, std::string effect = {})
      : at_(at), error_(error), effect_(std::move(effect)) {}

 protected:
  int Intercept(std::string_view effect, const std::string&) override {
    if ((!effect_.empty() && effect != effect_) || count_++ != at_) {
      return 0;
    }
    if (error_ == 0) {
      kill(getpid(), SIGKILL);
    }
    return error_;
  }

 private:
  std::atomic<int64_t> count_{0};
  int64_t at_;
  int error_;
  std::string effect_;
};

Group GroupOf(const std::shared_ptr<fsdp::Collectives>& collectives,
              std::vector<std::string>* warnings = nullptr) {
  Group group;
  group.collectives = collectives;
  group.warn = [warnings](const std::string& text) {
    if (warnings != nullptr) {
      warnings->push_back(text);
    }
  };
  return group;
}

SaverOptions OptionsOf(const std::string& dir, const Group& group) {
  SaverOptions options;
  options.dir = dir;
  options.group = group;
  options.job_id = "job";
  options.generation = 1;
  return options;
}

void SaveSteps(const std::string& dir, int64_t size, const std::vector<int64_t>& steps,
               int64_t keep = 0) {
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives));
    options.keep = keep;
    Saver saver(std::move(options));
    for (const int64_t step : steps) {
      saver.Save(step, StateOf(collectives->rank(), size, step));
    }
  });
}

/// Loads at `size` ranks what FindResume chooses; checks every value; returns the step (-1: none).
int64_t LoadAndCheck(const std::string& dir, int64_t size, Verify verify = Verify::kFull,
                     const std::string& resume = "auto",
                     std::vector<std::string>* warnings = nullptr) {
  std::atomic<int64_t> found{-1};
  std::mutex mutex;
  std::string failure;
  ThreadRanks(size).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    try {
      const Group group = GroupOf(collectives, warnings);
      const std::optional<Candidate> candidate = FindResume(dir, resume, group, verify);
      if (!candidate) {
        return;
      }
      State state = StateOf(collectives->rank(), size, -1);
      Load(*candidate, state, group);
      for (size_t i = 0; i < state.tensors.size(); ++i) {
        const fsdp::ShardedSlice& slice = state.tensors[i];
        EXPECT_TRUE(
            slice.local.equal(Whole(i, candidate->step).slice(0, slice.flat_begin, slice.flat_end)))
            << slice.fqn;
      }
      EXPECT_EQ(json::parse(state.training_state_json),
                (json{{"step", candidate->step}, {"seed", ~uint64_t{0}}}));
      EXPECT_EQ(json::parse(state.param_groups_json)[0]["lr"], 0.1);
      found = candidate->step;
    } catch (const CheckpointError& error) {
      const std::lock_guard<std::mutex> lock(mutex);
      failure = error.what();
    }
  });
  if (!failure.empty()) {
    throw CheckpointError(failure);
  }
  return found;
}

void FlipBit(const std::string& path, uint64_t random) {
  const auto size = std::filesystem::file_size(path);
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  const auto offset = static_cast<std::streamoff>(random / 8 % size);
  file.seekg(offset);
  const char byte = static_cast<char>(file.get() ^ (1 << (random % 8)));
  file.seekp(offset);
  file.put(byte);
}

std::vector<std::string> FilesOf(const std::string& directory) {
  std::vector<std::string> files;
  for (const std::string& name : ListDirectory(directory)) {
    files.push_back(directory + "/" + name);
  }
  return files;
}

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
              HasSubstr("no such directory"));
}

TEST(CheckpointTest, DamagedFileIsNamedAndTheOlderOneUsed) {
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

TEST(CheckpointTest, FlippedTensorByteNamesFileAndItem) {
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

TEST(CheckpointTest, ThousandBitFlipsAreFoundOrHarmless) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1});
  std::mt19937_64 random(3);
  const std::vector<std::string> files = FilesOf(dir / "step-1");
  int found = 0;
  for (int i = 0; i < 1000; ++i) {
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
  EXPECT_GT(found, 900);
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 1);
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

TEST(CheckpointTest, AnyFailingEffectThrowsOnAllRanksAndPublishesNothing) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 2, {1});
  for (const char* effect : {"create", "reserve", "write", "sync", "make_directory"}) {
    std::atomic<int> thrown{0};
    ThreadRanks(2).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      Saver good(OptionsOf(dir.path(), GroupOf(collectives)));
      SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
      const bool is_faulty = collectives->rank() == (effect[0] == 'm' ? 0 : 1);
      options.file_system = is_faulty
                                ? std::make_shared<Faulty>(effect[0] == 'm' ? 1 : 0, ENOSPC, effect)
                                : std::make_shared<FileSystem>();
      Saver saver(std::move(options));
      const std::string message =
          MessageOf<CheckpointError>([&] { saver.Save(2, StateOf(collectives->rank(), 2, 2)); });
      EXPECT_THAT(message, HasSubstr("the disk is full"));
      EXPECT_THAT(message, HasSubstr("bytes are free"));
      ++thrown;
    });
    EXPECT_EQ(thrown, 2) << effect;
    EXPECT_EQ(LoadAndCheck(dir.path(), 2), 1) << effect;
    EXPECT_FALSE(DirectoryExists(dir / "step-2"));
  }
}

TEST(CheckpointTest, KilledAtAnyEffectTheNewestGoodOneLoads) {
  int64_t effect = 0;
  for (bool has_died = true; has_died; ++effect) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    const pid_t child = fork();
    if (child == 0) {
      ThreadRanks ranks(1);
      ranks.Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
        SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
        options.file_system = std::make_shared<Faulty>(effect, 0);
        options.keep = 1;
        Saver saver(std::move(options));
        saver.Save(2, StateOf(0, 1, 2));  // replaces
        saver.Save(3, StateOf(0, 1, 3));
      });
      _exit(0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    has_died = WIFSIGNALED(status);
    EXPECT_GE(LoadAndCheck(dir.path(), 1), 2) << "killed at effect " << effect;
    SaveSteps(dir.path(), 2, {9}, 1);
    EXPECT_THAT(ListDirectory(dir.path()),
                ::testing::ElementsAre(".claim", ".lock", "latest", "step-9"))
        << "killed at effect " << effect;
  }
  EXPECT_GT(effect, 30);
}

TEST(CheckpointTest, StaleGenerationNeitherClaimsNorPublishes) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    Saver stale(options);
    options.generation = 2;
    Saver current(options);
    EXPECT_THAT(MessageOf<CheckpointError>([&] { stale.Save(7, StateOf(0, 1, 7)); }),
                HasSubstr("is stale"));
    current.Save(8, StateOf(0, 1, 8));
    options.generation = 1;
    EXPECT_THAT(MessageOf<CheckpointError>([&] { Saver late(options); }),
                HasSubstr("older generation 1"));
    options.job_id = "another job";
    Saver takes_over(options);
    takes_over.Save(9, StateOf(0, 1, 9));
  });
  EXPECT_FALSE(DirectoryExists(dir / "step-7"));
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 9);
}

TEST(CheckpointTest, SameCommandClaimsAgainAfterRestarts) {
  const TemporaryDirectory dir;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir.path(), GroupOf(collectives));
    const auto save = [&](const char* job_id, uint64_t generation, int64_t step) {
      options.job_id = job_id;
      options.generation = generation;
      Saver(options).Save(step, StateOf(0, 1, step));
    };
    save("run-1", 1, 1);
    save("run-1", 2, 2);  // a restart
    save("run-2", 1, 3);  // the job ended; the same command again
    save("", 2, 4);       // another launcher
    save("", 1, 5);
  });
  EXPECT_EQ(LoadAndCheck(dir.path(), 1), 5);
}

TEST(CheckpointTest, OwnCheckpointsAreThoseOfTheLaunch) {
  const TemporaryDirectory dir;
  std::vector<std::string> warnings;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    const Group group = GroupOf(collectives, &warnings);
    SaverOptions options = OptionsOf(dir.path(), group);
    const auto save = [&](const char* job_id, int64_t step) {
      options.job_id = job_id;
      Saver(options).Save(step, StateOf(0, 1, step));
    };
    EXPECT_FALSE(FindOwn(dir / "absent", "run-1", group));
    save("run-1", 1);
    save("run-1", 2);
    save("run-2", 3);
    save("", 4);
    EXPECT_EQ(FindOwn(dir.path(), "run-1", group)->step, 2);
    EXPECT_EQ(FindOwn(dir.path(), "run-2", group)->step, 3);
    EXPECT_FALSE(FindOwn(dir.path(), "run-3", group));
    EXPECT_FALSE(FindOwn(dir.path(), "", group));
    std::filesystem::resize_file(dir / "step-2/__0_0.distcp", 100);
    EXPECT_EQ(FindOwn(dir.path(), "run-1", group)->step, 1);
    EXPECT_EQ(warnings.size(), 1u);
    std::filesystem::resize_file(dir / "step-3/__0_0.distcp", 100);
    EXPECT_FALSE(FindOwn(dir.path(), "run-2", group));
    EXPECT_EQ(warnings.size(), 2u);
  });
}

/// What a Save of step 2 over an earlier step 2 says if rank 0's `at`th `effect` fails.
std::string SaveWithFault(const std::string& dir, const char* effect, int64_t at, int error,
                          std::vector<std::string>& warnings) {
  std::string message;
  ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
    SaverOptions options = OptionsOf(dir, GroupOf(collectives, &warnings));
    options.keep = 1;
    options.file_system = std::make_shared<Faulty>(at, error, effect);
    try {
      Saver saver(std::move(options));
      saver.Save(2, StateOf(0, 1, 2));
    } catch (const CheckpointError& failure) {
      message = failure.what();
    }
  });
  return message;
}

TEST(CheckpointTest, FaultsOfTheFirstRankLeaveAGoodCheckpointAndSayWhatIsPublished) {
  for (const char* effect : {"rename", "sync_directory", "exchange", "remove"}) {
    for (int64_t at = 0; at < 20; ++at) {
      const TemporaryDirectory dir;
      SaveSteps(dir.path(), 1, {1, 2});
      std::vector<std::string> warnings;
      std::string message;
      try {
        message = SaveWithFault(dir.path(), effect, at, EIO, warnings);
      } catch (const CheckpointError&) {
        continue;  // the claim failed
      }
      EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2) << effect << at << message;
      const bool has_published = message.empty() || message.find("published") != std::string::npos;
      const json manifest = json::parse(std::ifstream(dir / "step-2/fsdprun.json"));
      EXPECT_EQ(manifest["sequence"], has_published ? 3 : 2) << effect << at << message;
    }
  }
}

TEST(CheckpointTest, FileSystemWithoutSwapReplacesByTwoRenames) {
  for (const int error : {EINVAL, ENOSYS}) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), 1, {1, 2});
    std::vector<std::string> warnings;
    EXPECT_EQ(SaveWithFault(dir.path(), "exchange", 0, error, warnings), "");
    EXPECT_THAT(ListDirectory(dir.path()),
                ::testing::ElementsAre(".claim", ".lock", "latest", "step-2"));
    EXPECT_EQ(json::parse(std::ifstream(dir / "step-2/fsdprun.json"))["sequence"], 3);
    EXPECT_EQ(LoadAndCheck(dir.path(), 1), 2);
  }
}

TEST(CheckpointTest, PipeInPlaceOfAFileIsRefusedAtOnce) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  std::filesystem::remove(dir / "step-1/__0_0.distcp");
  ASSERT_EQ(mkfifo((dir / "step-1/__0_0.distcp").c_str(), 0600), 0);
  EXPECT_THAT(MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 1); }),
              HasSubstr("not a regular file"));
}

TEST(CheckpointTest, HostileManifestsAreRefused) {
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
  manifest.files["f"] = {100, "", {{"k", INT64_MAX, INT64_MAX, ""}}};
  EXPECT_THAT(MessageOf<CheckpointError>([&] { DecodeManifest(EncodeManifest(manifest), "it"); }),
              HasSubstr("the item k outside of it"));
}

TEST(CheckpointTest, WithoutAManifestTheArchivesOwnChecksumsAreCompared) {
  const TemporaryDirectory dir;
  SaveSteps(dir.path(), 1, {1});
  const json manifest = json::parse(std::ifstream(dir / "step-1/fsdprun.json"));
  std::filesystem::remove(dir / "step-1/fsdprun.json");
  EXPECT_EQ(LoadAndCheck(dir.path(), 2), 1);
  const json& items = manifest["files"]["__0_0.distcp"]["items"];
  const auto offset = items.back()["offset"].get<uint64_t>();
  const std::string path = dir / "step-1/__0_0.distcp";
  std::string bytes = ReadWholeFile(path, 1 << 20);
  // A record's data follow its name and the extra field, whose length stands before the name.
  const std::string record = "archive/data/0";
  const size_t name = bytes.find(record, offset);
  ASSERT_NE(name, std::string::npos);
  const size_t extra = static_cast<uint8_t>(bytes[name - 2]) +
                       (static_cast<size_t>(static_cast<uint8_t>(bytes[name - 1])) << 8);
  FlipBit(path, 8 * (name + record.size() + extra));
  EXPECT_THAT(MessageOf<CheckpointError>([&] { LoadAndCheck(dir.path(), 2); }),
              HasSubstr("CRC-32 does not match"));
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
  for (int64_t writers = 1; writers <= 3; ++writers) {
    const TemporaryDirectory dir;
    SaveSteps(dir.path(), writers, {4});
    const std::string command = std::string(python) + " " + script + " read " + (dir / "step-4");
    EXPECT_EQ(std::system(command.c_str()), 0);
  }
  const TemporaryDirectory dir;
  const std::string command = std::string(python) + " " + script + " write " + (dir / "step-4");
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
}  // namespace fsdprun::worker::checkpoint
