#include "worker/estimate/run_estimate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <string>

#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "worker/config/command_line.h"
#include "worker/config/config_schema.h"
#include "worker/estimate/format_estimate.h"

namespace fsdprun::worker {
namespace {

class RunEstimateTest : public testing::Test {
 protected:
  RunEstimateTest() {
    std::ofstream(directory_ / "config.json") << R"({"model_type": "llama", "vocab_size": 256,
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3,
        "num_attention_heads": 2, "max_position_embeddings": 64})";
    merged_["model"]["config"] = directory_ / "config.json";
    merged_["data"]["seq_len"] = 16;
    request_.peak_flops = 1e12;
  }
  Json Answer() {
    request_.is_json = true;
    return Json::parse(RunEstimate(merged_, request_, /*present_ranks=*/2));
  }

  const checkpoint::TemporaryDirectory directory_;
  Json merged_ = DefaultConfig();
  EstimateRequest request_;
};

TEST_F(RunEstimateTest, NeedsNoDataAndNoRanks) {
  EXPECT_EQ(Answer().at("ranks"), 2);
  request_.ranks = 64;
  const Json answer = Answer();
  EXPECT_EQ(answer.at("ranks"), 64);
  EXPECT_EQ(answer.at("parameters").at("total"), 3 * 41088 + 32832);
  EXPECT_EQ(answer.at("step").at("tokens"), 64 * 16);
  EXPECT_TRUE(answer.at("verdict").is_null());
  EXPECT_GT(answer.at("time").at("tokens_per_second"), 0);
}

TEST_F(RunEstimateTest, MistakesAreThoseOfTheRun) {
  merged_["train"]["micro_batch_size"] = 0;
  EXPECT_NE(checkpoint::MessageOf<ConfigError>([&] { Answer(); }).find("train.micro_batch_size"),
            std::string::npos);
  merged_["train"]["micro_batch_size"] = 1;
  merged_["model"]["config"] = directory_ / "absent";
  EXPECT_THROW(Answer(), ConfigError);
  merged_["model"]["config"] = nullptr;
  EXPECT_NE(checkpoint::MessageOf<ConfigError>([&] { Answer(); }).find("model.config is missing"),
            std::string::npos);
}

TEST_F(RunEstimateTest, WhatTheModelDoesNotTakeIsRefused) {
  const auto refusal = [this](const char* section, const char* key, const Json& value) {
    const Json before = merged_[section][key];
    merged_[section][key] = value;
    const std::string message = checkpoint::MessageOf<ConfigError>([this] { Answer(); });
    merged_[section][key] = before;
    return message;
  };
  EXPECT_NE(refusal("data", "seq_len", 65).find("max_position_embeddings = 64"), std::string::npos);
  EXPECT_NE(refusal("train", "micro_batch_size", int64_t{1} << 37)
                .find("expected at most 2^40 tokens per step"),
            std::string::npos);
  EXPECT_NE(refusal("train", "global_batch_size", int64_t{1} << 37)
                .find("train.global_batch_size * data.seq_len: expected at most 2^40"),
            std::string::npos);
  EXPECT_NE(refusal("train", "freeze", Json::array({"*.ln_1.*"})).find("matches a parameter"),
            std::string::npos);
  EXPECT_NE(refusal("train", "freeze", Json::array({"lm_head*", "model.*"}))
                .find("leave a parameter to be trained"),
            std::string::npos);
  EXPECT_FALSE(Answer().is_null());
}

TEST_F(RunEstimateTest, ASpeedBeyondAllMachinesIsANumber) {
  request_.peak_flops = 1e30;
  request_.bandwidth = 0x1p59;
  const std::string text = RunEstimate(merged_, request_, 2);
  EXPECT_EQ(text.find(" -"), std::string::npos) << text;
}

TEST_F(RunEstimateTest, SavesAreToldWhereTheyTakeMemory) {
  merged_["checkpoint"]["dir"] = "c";
  EXPECT_NE(RunEstimate(merged_, request_, 2).find("on the host, for saves"), std::string::npos);
  merged_["parallel"]["backend"] = "shm";
  EXPECT_NE(RunEstimate(merged_, request_, 2).find("copy for checkpoints"), std::string::npos);
}

TEST(PeakTextTest, NamesTheDevice) {
  Estimate estimate;
  estimate.batches = 1536;
  EXPECT_EQ(PeakText(estimate), "1.5 KiB of a rank with a GPU");
  estimate.arrangement.is_gpu = false;
  EXPECT_EQ(PeakText(estimate), "1.5 KiB of a rank on a CPU");
}

TEST_F(RunEstimateTest, DevicesAreKnownByName) {
  request_.peak_flops.reset();
  request_.device = "H100";
  EXPECT_EQ(Answer().at("time").at("peak_flops"), 989e12);
  request_.device = "abacus";
  EXPECT_NE(checkpoint::MessageOf<UsageError>([&] { Answer(); }).find("--device abacus: expected"),
            std::string::npos);
  request_.peak_flops = 5e12;  // counts before the name
  EXPECT_EQ(Answer().at("time").at("peak_flops"), 5e12);
}

TEST_F(RunEstimateTest, TheConfigurationSaysWhatADeviceCanDo) {
  request_.peak_flops.reset();
  merged_["metrics"]["peak_flops"] = 7e12;
  EXPECT_EQ(Answer().at("time").at("peak_flops"), 7e12);
}

TEST_F(RunEstimateTest, PartsOfMemoryAreItsPeak) {
  request_.ranks = 4;
  const Json memory = Answer().at("memory");
  const auto bytes = [&memory](const char* key) { return memory.at(key).get<int64_t>(); };
  EXPECT_EQ(bytes("peak"), bytes("shards") + bytes("gradients") + bytes("optimizer") +
                               bytes("gathered") + bytes("unreduced") + bytes("batches") +
                               memory.at("activations").at("peak").get<int64_t>());
}

TEST_F(RunEstimateTest, TheTableHasWhatIsAssumed) {
  request_.ranks = 4;
  request_.device_memory = int64_t{80} << 30;
  const std::string text = RunEstimate(merged_, request_, 1);
  for (const char* part :
       {"4 ranks, each with a GPU", "llama, 156 thousand parameters, all trained", "state of adamw",
        "most of activations", "1 TFLOP/s at most in a device, of which 40 % are used (--mfu)",
        "50 GB/s to and from a rank (--bandwidth)", "not counted", "verdict", "fits: "}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  request_.device_memory = 100'000;
  EXPECT_NE(RunEstimate(merged_, request_, 1).find("does not fit: "), std::string::npos);
}

TEST(BytesTextTest, UnitsAreOf1024) {
  EXPECT_EQ(BytesText(0), "0 B");
  EXPECT_EQ(BytesText(1023), "1023 B");
  EXPECT_EQ(BytesText(1536), "1.5 KiB");
  EXPECT_EQ(BytesText(int64_t{80} << 30), "80.0 GiB");
  EXPECT_EQ(BytesText(int64_t{3} << 40), "3.0 TiB");
}

}  // namespace
}  // namespace fsdprun::worker
