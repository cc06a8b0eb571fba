#include "worker/run/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/tokens/token_bytes.h"
#include "worker/config/config_schema.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr char kDigest[] = "0123456789abcdef";

class InputsTest : public testing::Test {
 protected:
  InputsTest() {
    std::ofstream(directory_ / "config.json") << R"({"model_type": "llama", "vocab_size": 256,
        "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "max_position_embeddings": 64})";
    std::ofstream(directory_ / "text") << std::string(33, 'x');
    resolved_["model"]["config"] = directory_ / "config.json";
    resolved_["data"]["train"] = {directory_ / "text"};
    resolved_["data"]["seq_len"] = 32;
  }

  RunInputs Read(int rank = 0, int world_size = 1) const {
    WorkerEnvironment environment;
    environment.rank = rank;
    environment.world_size = world_size;
    return ReadInputs(resolved_, environment);
  }
  std::string Refusal() const {
    return checkpoint::MessageOf<ConfigError>([&] { Read(); });
  }

  /// A file of ids of which tokenizer is known; returns its path.
  std::string WriteTokens(const std::string& name, const TokenizerIdentity& tokenizer) const {
    std::ofstream(directory_ / (name + ".bin"), std::ios::binary)
        << LlmcFile(std::vector<uint16_t>(33, 7));
    const TokenFileInfo info{TokenDtype::kUint16, 33, 256, std::nullopt, tokenizer, {}};
    std::ofstream(directory_ / (name + ".bin.json")) << FormatTokenFileInfo(info);
    return directory_ / (name + ".bin");
  }
  void TrainAndEvaluate(const std::string& train, const std::string& valid) {
    resolved_["data"]["train"] = {train};
    resolved_["data"]["valid"] = {valid};
    resolved_["train"]["eval_every"] = 1;
  }

  const checkpoint::TemporaryDirectory directory_;
  Json resolved_ = DefaultConfig();
};

TEST_F(InputsTest, ModelAndTextAreRead) {
  const RunInputs inputs = Read();
  EXPECT_EQ(inputs.model.vocab_size, 256);
  EXPECT_EQ(inputs.description.model_config.at("vocab_size"), 256);
  EXPECT_EQ(inputs.train->window_count(), 1);
  EXPECT_EQ(inputs.valid, nullptr);
}

TEST_F(InputsTest, WindowLongerThanTheTextIsRefused) {
  resolved_["data"]["seq_len"] = 33;
  EXPECT_EQ(Refusal(),
            "data.train: the text has 33 bytes, one window needs data.seq_len + 1 = 34; give more "
            "text or a shorter data.seq_len");
}

TEST_F(InputsTest, ByteTextNeedsAModelOfAllBytes) {
  Json model = Read().description.model_config;
  model["vocab_size"] = 255;
  std::ofstream(directory_ / "config.json") << model.dump();
  EXPECT_NE(Refusal().find("vocab_size = 255: expected at least 256"), std::string::npos);
  // Its own tokens need no bytes.
  std::ofstream(directory_ / "tokens.bin", std::ios::binary)
      << LlmcFile(std::vector<uint16_t>(33, 254));
  resolved_["data"]["train"] = {directory_ / "tokens.bin"};
  EXPECT_EQ(Read().train->size(), 33);
}

TEST_F(InputsTest, OptionsThatDoNotGoTogetherAreRefused) {
  const Json source = {{"files", {directory_ / "text"}}, {"weight", 1}};
  resolved_["data"]["mixture"] = Json::array({source});
  EXPECT_NE(Refusal().find("data.mixture: expected none beside data.train"), std::string::npos);
  resolved_["data"]["train"] = nullptr;
  EXPECT_NE(Refusal().find("expected \"global\" with data.mixture"), std::string::npos);
  resolved_["data"]["sampler"] = "global";
  EXPECT_EQ(Read().train->weights(), std::vector<double>{1});
  resolved_["data"]["drop_last"] = true;
  EXPECT_NE(Refusal().find("data.drop_last = true: expected false"), std::string::npos);
  resolved_["data"]["drop_last"] = false;
  resolved_["data"]["mixture"][0]["weight"] = 1e-9;
  EXPECT_NE(Refusal().find("expected at most six decimals"), std::string::npos);
}

TEST_F(InputsTest, EpochOfFewerWindowsThanRanksCannotBeDropped) {
  resolved_["data"]["drop_last"] = true;
  EXPECT_NO_THROW(Read());
  EXPECT_NE(checkpoint::MessageOf<ConfigError>([&] {
              Read(/*rank=*/0, /*world_size=*/2);
            }).find("1 windows are fewer than the 2 ranks"),
            std::string::npos);
}

TEST_F(InputsTest, DocumentsOfOneTokenHaveNoWindows) {
  std::ofstream(directory_ / "a") << "x";
  resolved_["data"]["train"] = {directory_ / "a", directory_ / "a"};
  resolved_["data"]["documents"] = "separate";
  EXPECT_NE(Refusal().find("one window needs a document of at least 2"), std::string::npos);
}

TEST_F(InputsTest, WindowLongerThanTheModelsPositionsIsRefused) {
  resolved_["data"]["seq_len"] = 65;
  EXPECT_EQ(Refusal(),
            "configuration: data.seq_len = 65: expected at most the model's "
            "max_position_embeddings = 64");
}

TEST_F(InputsTest, EvaluationWithoutDataIsRefused) {
  resolved_["train"]["eval_every"] = 1;
  EXPECT_NE(Refusal().find("data.valid = []: expected at least one path"), std::string::npos);
}

TEST_F(InputsTest, EvaluationDataOfAnotherTokenizerAreRefused) {
  const std::string train = WriteTokens("train", {"tokenizer.json", kDigest});
  TrainAndEvaluate(train, WriteTokens("valid", {"sentencepiece", "fedcba9876543210"}));
  EXPECT_THAT(Refusal(), AllOf(HasSubstr("data.valid: the digest of its tokenizer is "
                                         "fedcba9876543210 (sentencepiece), and that of the data "
                                         "to train on 0123456789abcdef (tokenizer.json)"),
                               HasSubstr("make tokens of both with one tokenizer")));
  TrainAndEvaluate(train, directory_ / "text");
  EXPECT_THAT(Refusal(), HasSubstr("(bytes), and that of the data to train on 0123456789abcdef"));
  TrainAndEvaluate(directory_ / "text", train);
  EXPECT_THAT(Refusal(), HasSubstr("data.valid: the digest of its tokenizer is 0123456789abcdef"));
  TrainAndEvaluate(train, WriteTokens("valid", {"tokenizer.json", kDigest}));
  EXPECT_NE(Read().valid, nullptr);
  TrainAndEvaluate(directory_ / "text", WriteTokens("valid", MakeByteTokenizer()->identity()));
  EXPECT_NE(Read().valid, nullptr);
}

TEST_F(InputsTest, TextDoesNotEvaluateIdsThatNobodyDescribes) {
  const std::string tokens = directory_ / "tokens.bin";
  std::ofstream(tokens, std::ios::binary) << LlmcFile(std::vector<uint16_t>(33, 7));
  TrainAndEvaluate(tokens, directory_ / "text");
  EXPECT_THAT(Refusal(), HasSubstr("data.valid: it is text, and the data to train on are tokens"));
  TrainAndEvaluate(directory_ / "text", tokens);
  EXPECT_THAT(Refusal(), HasSubstr("data.valid: it is tokens, and the data to train on are text"));
  TrainAndEvaluate(tokens, WriteTokens("valid", {"tokenizer.json", kDigest}));
  EXPECT_NE(Read().valid, nullptr);
}

TEST_F(InputsTest, WeightsAreTrainedOnIdsOfTheTokenizerBesideThem) {
  const std::filesystem::path folder = directory_ / "weights";
  std::filesystem::create_directory(folder);
  std::ofstream(folder / "tokenizer.json") << "one";
  const std::string digest = IdentityOf("tokenizer.json", "one").digest;
  const std::string others = WriteTokens("others", {"tokenizer.json", kDigest});
  resolved_["model"]["weights"] = folder.string();
  for (const std::string& data : {others, directory_ / "text"}) {
    resolved_["data"]["train"] = {data};
    EXPECT_THAT(Refusal(), AllOf(HasSubstr("model.weights: the tokenizer beside them, " +
                                           (folder / "tokenizer.json").string() +
                                           ", has the digest " + digest),
                                 HasSubstr("data.on_change to warn")));
  }
  resolved_["data"]["train"] = {WriteTokens("own", {"tokenizer.json", digest})};
  EXPECT_NO_THROW(Read());
  // A folder may have two forms of one tokenizer.
  std::ofstream(folder / "tokenizer.model") << "two";
  EXPECT_NO_THROW(Read());
  resolved_["data"]["train"] = {
      WriteTokens("second", {"sentencepiece", IdentityOf("sentencepiece", "two").digest})};
  EXPECT_NO_THROW(Read());
}

TEST_F(InputsTest, TokenizerBesideTheConfigurationIsTheOneOfWeightsThatHaveNone) {
  std::ofstream(directory_ / "tokenizer.json") << "one";
  EXPECT_NO_THROW(Read());  // random weights know no ids
  const std::filesystem::path folder = directory_ / "weights";
  std::filesystem::create_directory(folder);
  resolved_["model"]["weights"] = (folder / "model.safetensors").string();
  EXPECT_THAT(Refusal(),
              HasSubstr("the tokenizer beside them, " + (directory_ / "tokenizer.json")));
  resolved_["data"]["on_change"] = "warn";
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(Read());
  EXPECT_NO_THROW(Read(/*rank=*/1, /*world_size=*/2));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_EQ(told.find("warning: model.weights: the tokenizer beside them"), 0U) << told;
  EXPECT_EQ(told.rfind("warning: "), 0U) << told;
}

TEST_F(InputsTest, StepWhoseTokensCannotBeCountedIsRefused) {
  resolved_["train"]["micro_batch_size"] = int64_t{1} << 35;
  EXPECT_NO_THROW(Read());
  resolved_["train"]["grad_accumulation"] = 2;
  EXPECT_NE(Refusal().find("expected at most 2^40 tokens per step"), std::string::npos);
  resolved_["train"]["grad_accumulation"] = 1;
  EXPECT_THROW(Read(/*rank=*/0, /*world_size=*/2), ConfigError);
}

TEST_F(InputsTest, ModelConfigThatNoCheckpointCanHoldIsRefused) {
  Json nested = 1;
  for (int i = 0; i < 40; ++i) {
    nested = Json::array({nested});
  }
  Json model = Read().description.model_config;
  model["comment"] = nested;
  std::ofstream(directory_ / "config.json") << model.dump();
  EXPECT_NE(Refusal().find("config.json: nested deeper than 32"), std::string::npos);
}

/// While it lives, the working directory is another one.
class WorkingDirectory {
 public:
  explicit WorkingDirectory(const std::filesystem::path& path)
      : before_(std::filesystem::current_path()) {
    std::filesystem::current_path(path);
  }
  ~WorkingDirectory() { std::filesystem::current_path(before_); }

 private:
  const std::filesystem::path before_;
};

// What a checkpoint says of its run is JSON.
TEST_F(InputsTest, FolderOfTheModelIsKeptIfItsNameIsUtf8) {
  resolved_["model"]["config"] = "config.json";
  for (const auto& [name, is_kept] :
       {std::pair("caf\xc3\xa9", true), std::pair("caf\xe9", false)}) {
    const std::filesystem::path folder = directory_ / name;
    std::error_code error;
    if (!std::filesystem::create_directory(folder, error)) {
      GTEST_SKIP() << "the file system takes no other names: " << error.message();
    }
    std::filesystem::copy(directory_ / "config.json", folder / "config.json");
    const WorkingDirectory there(folder);
    EXPECT_EQ(Read().description.model_folder, is_kept ? folder.string() : "");
  }
}

TEST_F(InputsTest, OnlyRankZeroLooksAtWhatIsWritten) {
  resolved_["metrics"]["jsonl"] = directory_ / "text/metrics";
  EXPECT_NO_THROW(Read(/*rank=*/1, /*world_size=*/2));
  EXPECT_NE(Refusal().find("text/metrics"), std::string::npos);
  resolved_["metrics"]["jsonl"] = "";
  resolved_["metrics"]["tensorboard"] = directory_ / "text/curves";
  EXPECT_NE(Refusal().find("text/curves"), std::string::npos);
  resolved_["metrics"]["tensorboard"] = "";
  resolved_["checkpoint"]["dir"] = directory_ / "text/checkpoints";
  EXPECT_NE(Refusal().find("text/checkpoints"), std::string::npos);
}

}  // namespace
}  // namespace fsdprun::worker
