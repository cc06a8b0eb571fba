#include "worker/run/check.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>

#include "formats/checkpoint/commit.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/worker/run/small_run.h"
#include "worker/batch/micro_batch_limit.h"
#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

class CheckTest : public testing::Test {
 protected:
  CheckTest() {
    std::ofstream(directory_ / "config.json") << R"({"model_type": "llama", "vocab_size": 256,
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64})";
    std::ofstream(directory_ / "text") << std::string(321, 'x');
    resolved_["model"]["config"] = directory_ / "config.json";
    resolved_["data"]["train"] = {directory_ / "text"};
    resolved_["data"]["seq_len"] = 32;
    resolved_["train"]["steps"] = 5;
    resolved_["checkpoint"]["dir"] = directory_ / "checkpoints";
    resolved_["metrics"]["jsonl"] = directory_ / "metrics/metrics.jsonl";
  }
  std::string Check(int64_t ranks = 2) {
    std::string text;
    CheckRun(resolved_, ranks, WorkerEnvironment{}, [&](const std::string& part) { text += part; });
    return text;
  }
  std::string Refused(int64_t ranks = 2) {
    return checkpoint::MessageOf<ConfigError>([&] { Check(ranks); });
  }
  /// A checkpoint of step 1 of a run that differs from resolved_ by `changes`: sections of keys.
  /// `has_record`: it says which run it is of, as those of older versions do not.
  void Save(const Json& changes, bool has_record = true) const {
    Json resolved = resolved_;
    MergeConfig(resolved, changes, "changes");
    const ModelConfig model = ReadModelConfig(directory_ / "config.json");
    SmallRun run(model, changes);
    run.state.record = RecordRun(model, resolved, /*world_size=*/2);
    checkpoint::SaverOptions options;
    options.dir = resolved_["checkpoint"]["dir"];
    options.group = run.group();
    checkpoint::Saver saver(options);
    run.state.step = 1;
    checkpoint::State state = Capture(run.state, run.config);
    if (!has_record) {
      Json training = Json::parse(state.training_state_json);
      training.erase("model");
      training.erase("settings");
      state.training_state_json = training.dump();
    }
    saver.Save(1, state);
    saver.Release();
  }
  /// Contents by name, with the time of the last change.
  std::map<std::string, std::string> Files() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_.path())) {
      const std::string path = entry.path().string();
      files[path] =
          std::to_string(entry.last_write_time().time_since_epoch().count()) +
          (entry.is_regular_file() ? checkpoint::ReadWholeFile(path, int64_t{1} << 30) : "");
    }
    return files;
  }

  const checkpoint::TemporaryDirectory directory_;
  Json resolved_ = DefaultConfig();
};

TEST_F(CheckTest, SaysWhatWouldHappenAndChangesNothing) {
  const std::map<std::string, std::string> before = Files();
  const std::string text = Check();
  for (const char* part :
       {"nothing was started or written", "llama of ", "random weights (model.seed 0)",
        "10 windows of 32 tokens, of 321 bytes of text", "2: 2 divide a model (full_shard), 1 copy",
        "5 of 2 windows, in 1 forwards of at most 1 on a rank; 1 epochs", "adamw, rate 0.001",
        "at step 0", "/checkpoints, every 30 minutes, at the end; each has ",
        "/metrics/metrics.jsonl", "of a rank "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(Files(), before);
}

TEST_F(CheckTest, RefusesWhatTheRunWouldRefuse) {
  resolved_["train"]["global_batch_size"] = 3;
  EXPECT_NE(Refused().find("train.global_batch_size = 3 on 2 ranks: expected"), std::string::npos);
  resolved_["train"]["global_batch_size"] = 0;
  resolved_["parallel"]["dp_replicate"] = 2;
  EXPECT_NE(Refused(/*ranks=*/3).find("parallel.dp_replicate is 2"), std::string::npos);
  resolved_["parallel"]["dp_replicate"] = 1;
  resolved_["optimizer"]["no_decay"] = {"*nothing*"};
  EXPECT_NE(Refused().find("optimizer.no_decay has \"*nothing*\""), std::string::npos);
  resolved_["optimizer"]["no_decay"] = Json::array();
  resolved_["data"]["seq_len"] = 65;
  EXPECT_NE(Refused().find("data.seq_len = 65"), std::string::npos);
  resolved_["data"]["seq_len"] = 32;
  resolved_["data"]["train"] = {directory_ / "absent"};
  EXPECT_NE(Refused().find("absent"), std::string::npos);
}

TEST_F(CheckTest, PlacesThatCannotBeWrittenAreRefusedByTheirKey) {
  resolved_["checkpoint"]["dir"] = directory_ / "text";
  EXPECT_NE(Refused().find("text: Not a directory; choose another checkpoint.dir"),
            std::string::npos);
  resolved_["checkpoint"]["dir"] = "";
  resolved_["metrics"]["jsonl"] = directory_ / "text";
  EXPECT_NE(Refused().find("is not a metrics file"), std::string::npos);
  resolved_["metrics"]["jsonl"] = directory_ / "text/metrics";
  EXPECT_NE(Refused().find("choose another metrics.jsonl"), std::string::npos);
}

TEST_F(CheckTest, WeightsAreComparedByTheirHeaders) {
  const std::string file = directory_ / "model.safetensors";
  const std::string header =
      R"({"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::ofstream out(file, std::ios::binary);
  const uint64_t length = header.size();
  out.write(reinterpret_cast<const char*>(&length), sizeof length);
  out << header << std::string(8, '\0');
  out.close();
  resolved_["model"]["weights"] = file;
  EXPECT_NE(Refused().find("lack tensors of the model: model.embed_tokens.weight"),
            std::string::npos);
  resolved_["model"]["weights"] = directory_ / "absent";
  EXPECT_THROW(Check(), std::exception);
}

TEST_F(CheckTest, RefusesACheckpointThatTheRunWouldRefuse) {
  const Json none = Json::object();
  const auto lora = [](const Json& section) { return Json{{"lora", section}}; };
  const auto optimizer = [](const Json& section) { return Json{{"optimizer", section}}; };
  const struct {
    Json saved;
    Json now;
    const char* words;
  } cases[] = {
      {lora({{"rank", 2}}), lora({{"rank", 4}}), "lora.rank was 2 at the checkpoint and is 4 now"},
      {lora({{"rank", 2}}), lora({{"rank", 2}, {"alpha", 1.0}}), "lora.alpha was 16.0"},
      {none, lora({{"rank", 2}}), "the checkpoint has no adapters"},
      {lora({{"rank", 2}}), none, "the checkpoint has adapters alone"},
      {none, optimizer({{"name", "muon"}}), "was it trained with another optimizer.name"},
      {optimizer({{"name", "sgd"}}), optimizer({{"name", "sgd"}, {"momentum", 0.9}}),
       "without optimizer.momentum"},
      {Json{{"train", {{"freeze", {"*norm*"}}}}}, none, "train.freeze was [\"*norm*\"]"}};
  resolved_["data"]["on_change"] = "warn";
  const Json given = resolved_;
  int64_t number = 0;
  for (const auto& [saved, now, words] : cases) {
    resolved_ = given;
    resolved_["checkpoint"]["dir"] = directory_ / ("checkpoints-" + std::to_string(++number));
    Save(saved);
    const std::map<std::string, std::string> before = Files();
    MergeConfig(resolved_, saved, "saved");
    EXPECT_NE(Check().find("after step 1, from "), std::string::npos) << words;
    resolved_["lora"] = given["lora"];
    resolved_["optimizer"] = given["optimizer"];
    resolved_["train"] = given["train"];
    MergeConfig(resolved_, now, "now");
    const std::string refused = Refused();
    EXPECT_NE(refused.find(words), std::string::npos) << refused;
    EXPECT_NE(refused.find("/step-1: "), std::string::npos) << refused;
    EXPECT_EQ(Files(), before) << words;
  }
}

TEST_F(CheckTest, AnOlderCheckpointHasNoAdapters) {
  Save(Json::object(), /*has_record=*/false);
  resolved_["data"]["on_change"] = "warn";
  resolved_["lora"]["rank"] = 2;
  EXPECT_NE(Refused().find("the checkpoint has no adapters"), std::string::npos);
}

TEST_F(CheckTest, TellsTheDtypeOfABase) {
  resolved_["lora"]["rank"] = 2;
  const std::string text = Check();
  EXPECT_NE(text.find(" are trained, and their base is kept in float32; "), std::string::npos)
      << text;
}

TEST_F(CheckTest, ALimitOfMemoryCountsAsInTheRun) {
  resolved_["train"]["micro_batch_size"] = 4;
  resolved_["train"]["on_out_of_memory"] = "shrink";
  const std::string dir = resolved_["checkpoint"]["dir"];
  std::filesystem::create_directories(dir);
  checkpoint::FileSystem file_system;
  const ModelConfig model = ReadModelConfig(directory_ / "config.json");
  WriteMicroBatchLimit(file_system, dir, "launch-0",
                       {1, 3, "run", "launch", MicroBatchSettings(resolved_, model, 2)});
  const std::map<std::string, std::string> before = Files();
  std::string text = Check();
  EXPECT_NE(text.find("5 of 8 windows, in 4 forwards of at most 1 on a rank"), std::string::npos)
      << text;
  EXPECT_NE(text.find("because step 3 had no memory for more"), std::string::npos) << text;
  EXPECT_EQ(Files(), before);
  resolved_["data"]["seq_len"] = 16;
  text = Check();
  EXPECT_NE(text.find("in 1 forwards of at most 4 on a rank"), std::string::npos) << text;
  EXPECT_NE(text.find("is left aside: data.seq_len was 32 then and is 16 now"), std::string::npos)
      << text;
}

TEST_F(CheckTest, WeightsThatARunWouldNotReadMayBeGone) {
  resolved_["data"]["on_change"] = "warn";
  resolved_["model"]["weights"] = directory_ / "absent";
  Save(Json::object());
  EXPECT_NE(Check().find("after step 1, from "), std::string::npos);
  resolved_["checkpoint"]["dir"] = directory_ / "adapters";
  resolved_["lora"]["rank"] = 2;
  Save({{"lora", {{"rank", 2}}}});
  EXPECT_NE(Refused().find("absent"), std::string::npos);  // of them it is the base
}

TEST_F(CheckTest, ADirectoryThatIsHeldIsRefused) {
  const std::string dir = directory_ / "checkpoints";
  const auto file_system = std::make_shared<checkpoint::FileSystem>();
  const auto timeout = std::chrono::milliseconds(400);
  const auto warn = [](const std::string&) {};
  checkpoint::ClaimPulse pulse(
      file_system,
      checkpoint::AcquireClaim(
          *file_system, dir, {checkpoint::MakeClaim("another", 1, timeout), timeout, false}, warn),
      std::chrono::milliseconds(10));
  resolved_["checkpoint"]["claim_timeout_seconds"] = 20.0;
  EXPECT_NE(checkpoint::MessageOf<checkpoint::ClaimHeldError>([&] { Check(); }).find("is using it"),
            std::string::npos);
  resolved_["checkpoint"]["takeover"] = true;
  EXPECT_NE(Check().find("at step 0"), std::string::npos);
  EXPECT_EQ(checkpoint::LookAtClaim(dir)->claim.job_id, "another");  // it has not been taken
}

}  // namespace
}  // namespace fsdprun::worker
