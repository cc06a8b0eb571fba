#include "formats/accelerate/accelerate_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/accelerate/accelerate_environment.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string Refusal(const std::string& text) {
  try {
    const AccelerateConfig config(text, "f.yaml");
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string Line2(const std::string& line) { return "distributed_type: FSDP\n" + line + "\n"; }

TEST(AccelerateConfigTest, WrongValuesAreNamedWithWhatIsAllowed) {
  EXPECT_EQ(Refusal(Line2("num_machines: two")),
            "f.yaml:2: num_machines = 'two': expected a whole number from 1 to 1048576");
  EXPECT_EQ(Refusal(Line2("mixed_precision: fp8")),
            "f.yaml:2: mixed_precision = 'fp8': expected one of no, fp16, bf16");
  EXPECT_EQ(Refusal(Line2("use_cpu: maybe")),
            "f.yaml:2: use_cpu = 'maybe': expected true or false");
  EXPECT_EQ(Refusal(Line2("debug: [true]")), "f.yaml:2: debug = a list: expected true or false");
  EXPECT_EQ(Refusal(Line2("fsdp_config:\n  fsdp_version: 3")),
            "f.yaml:3: fsdp_config.fsdp_version = '3': expected one of 1, 2");
  EXPECT_THAT(Refusal(Line2("fsdp_config: {fsdp_reshard_after_forward: SOME}")),
              HasSubstr("f.yaml:2: fsdp_config.fsdp_reshard_after_forward = 'SOME': expected true, "
                        "false, or one of FULL_SHARD, SHARD_GRAD_OP"));
  EXPECT_THAT(Refusal("distributed_type: DEEPSPEED"),
              HasSubstr("f.yaml:1: distributed_type = 'DEEPSPEED': expected one of NO, MULTI_CPU"));
  EXPECT_THAT(Refusal("compute_environment: AMAZON_SAGEMAKER"),
              HasSubstr("expected LOCAL_MACHINE"));
  EXPECT_EQ(Refusal(Line2("fsdp_config: 1")),
            "f.yaml:2: fsdp_config = '1': expected keys below it");
  EXPECT_THAT(Refusal(Line2("gpu_ids: \"0\\n1\"")), HasSubstr("f.yaml:2: gpu_ids"));
}

TEST(AccelerateConfigTest, WhatCannotBeTrueTogetherIsRefused) {
  EXPECT_THAT(Refusal("num_machines: 1"), HasSubstr("f.yaml: distributed_type is missing"));
  EXPECT_THAT(Refusal("- a\n"), HasSubstr("f.yaml:1: expected the keys"));
  EXPECT_THAT(Refusal(""), HasSubstr("f.yaml:1: expected the keys"));
  EXPECT_THAT(Refusal(Line2("fsdp_config: {version: 1, fsdp_version: 2}")), HasSubstr("twice"));
  EXPECT_THAT(Refusal(Line2("fsdp_config: {fsdp_sync_module_states: false}")),
              HasSubstr("fsdp_cpu_ram_efficient_loading"));
  EXPECT_EQ(Refusal(Line2("fsdp_config: {fsdp_sync_module_states: false, "
                          "fsdp_cpu_ram_efficient_loading: false}")),
            "accepted");
}

TEST(AccelerateConfigTest, UnknownKeysAreWarningsWithTheirPlace) {
  const AccelerateConfig config(
      Line2(
          "num_machnes: 2\nfsdp_config:\n  fsdp_vrsion: 2\n  version: 2\ndeepspeed_config: {a: 1}"),
      "f.yaml");
  EXPECT_THAT(config.warnings(),
              ElementsAre("f.yaml:2: num_machnes: this key is not known, and has no effect",
                          "f.yaml:4: fsdp_config.fsdp_vrsion: this key is not known, and has no "
                          "effect"));
  EXPECT_EQ(config.Text("fsdp_config.fsdp_version", ""), "2");
  EXPECT_EQ(config.Number("num_machines"), std::nullopt);
}

TEST(AccelerateConfigTest, ValuesAreThoseOfTheirKinds) {
  const AccelerateConfig config(
      Line2("mixed_precision: no\nuse_cpu: yes\nnum_processes: 4\nmain_process_ip: null\n"
            "gpu_ids: 0,1\ndynamo_backend: inductor"),
      "f.yaml");
  EXPECT_EQ(config.Word("mixed_precision", ""), "NO");
  EXPECT_TRUE(config.Flag("use_cpu", false));
  EXPECT_TRUE(config.Flag("debug", true));
  EXPECT_EQ(config.Number("num_processes"), 4);
  EXPECT_EQ(config.Find("main_process_ip"), nullptr);
  EXPECT_EQ(config.Place("num_processes"), "f.yaml:4: num_processes");
  const auto variables = AccelerateEnvironment(config);
  EXPECT_EQ(variables.at("ACCELERATE_DYNAMO_BACKEND"), "INDUCTOR");
  EXPECT_EQ(variables.at("CUDA_VISIBLE_DEVICES"), "0,1");
  EXPECT_EQ(variables.at("FSDP_SHARDING_STRATEGY"), "FULL_SHARD");
  EXPECT_EQ(variables.count("FSDP_AUTO_WRAP_POLICY"), 0u);
  EXPECT_EQ(variables.count("ACCELERATE_USE_CPU"), 0u);
}

TEST(AccelerateConfigTest, WhatAccelerateRunsIsAccepted) {
  EXPECT_EQ(Refusal("distributed_type: MULTI_GPU\nfsdp_config: {fsdp_sync_module_states: false}"),
            "accepted");
  EXPECT_EQ(Refusal(Line2("dynamo_config: {dynamo_mode: max-autotune-no-cudagraphs}")), "accepted");
  const AccelerateConfig config(Line2("main_process_port: 0x10\nnum_processes: 1_0"), "f.yaml");
  EXPECT_EQ(config.Number("main_process_port"), 16);
  EXPECT_EQ(config.Number("num_processes"), 10);
}

TEST(AccelerateConfigTest, OldFilesSayFp16) {
  const auto precision = [](const std::string& lines) {
    const AccelerateConfig config(Line2(lines), "f.yaml");
    EXPECT_THAT(config.warnings(), ElementsAre());
    return AccelerateEnvironment(config).at("ACCELERATE_MIXED_PRECISION");
  };
  EXPECT_EQ(precision("fp16: true"), "fp16");
  EXPECT_EQ(precision("fp16: false"), "no");
  EXPECT_EQ(precision("fp16: true\nmixed_precision: bf16"), "bf16");
}

TEST(AccelerateConfigTest, AFileThatIsNotThereIsNamed) {
  EXPECT_THROW(ReadAccelerateConfig("/nonexistent/f.yaml"), ConfigError);
}

}  // namespace
}  // namespace fsdprun
