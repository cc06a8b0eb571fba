#include "worker/config/accelerate_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "worker/config/command_line.h"
#include "worker/config/resolve.h"

namespace fsdprun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

AccelerateSettings Settings(const std::string& yaml, const AccelerateWorld& world = {}) {
  return SettingsOfAccelerate(AccelerateConfig(yaml, "f.yaml"), world);
}

std::string RefusalOfFile(const std::string& yaml, const AccelerateWorld& world = {}) {
  try {
    Settings(yaml, world);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

std::string Fsdp(const std::string& keys) {
  return "distributed_type: FSDP\nfsdp_config: {" + keys + "}\n";
}

TEST(AccelerateSettingsTest, WhatFsdpTrainDoesNotDoIsRefusedByName) {
  EXPECT_EQ(RefusalOfFile("distributed_type: MULTI_GPU"),
            "f.yaml:1: distributed_type = 'MULTI_GPU': expected FSDP: fsdp-train shards what it "
            "trains (or NO, for one process)");
  EXPECT_THAT(RefusalOfFile("distributed_type: FSDP\nmixed_precision: fp16"),
              HasSubstr("f.yaml:2: mixed_precision = 'fp16': expected no or bf16"));
  for (const char* keys :
       {"fsdp_offload_params: true", "fsdp_activation_checkpointing_offload: true",
        "fsdp_ignored_modules: x", "fsdp_sharding_strategy: NO_SHARD",
        "fsdp_version: 2, fsdp_reshard_after_forward: FULL_SHARD"}) {
    EXPECT_THAT(RefusalOfFile(Fsdp(keys)), HasSubstr("f.yaml:2: fsdp_config.fsdp_")) << keys;
  }
  for (const char* size : {"tp", "cp", "sp"}) {
    EXPECT_THAT(RefusalOfFile("distributed_type: FSDP\nparallelism_config:\n  parallelism_config_" +
                              std::string(size) + "_size: 2\n"),
                HasSubstr("f.yaml:3: parallelism_config.parallelism_config_"));
  }
}

TEST(AccelerateSettingsTest, WhatDoesNotFitTheRanksIsRefused) {
  EXPECT_EQ(RefusalOfFile("distributed_type: 'NO'", {2, 2}),
            "f.yaml:1: distributed_type = 'NO': expected FSDP: NO is for one process, and there "
            "are 2");
  EXPECT_EQ(RefusalOfFile(Fsdp("fsdp_sharding_strategy: HYBRID_SHARD"), {5, 2}),
            "f.yaml:2: fsdp_config.fsdp_sharding_strategy = 'HYBRID_SHARD': expected FULL_SHARD or "
            "SHARD_GRAD_OP: the 5 ranks are not on nodes with 2 each");
}

TEST(AccelerateSettingsTest, Strategies) {
  const auto parallel = [](const std::string& keys, const std::string& more = "",
                           const AccelerateWorld& world = {}) {
    return Settings(Fsdp(keys) + more, world).settings.at("parallel");
  };
  EXPECT_EQ(parallel(""), Json({{"strategy", "full_shard"}}));
  EXPECT_EQ(parallel("fsdp_sharding_strategy: SHARD_GRAD_OP"),
            Json({{"strategy", "shard_grad_op"}}));
  EXPECT_EQ(parallel("fsdp_reshard_after_forward: shard_grad_op"),
            Json({{"strategy", "full_shard"}}))
      << "accelerate launch sets FSDP_SHARDING_STRATEGY, which counts";
  EXPECT_EQ(parallel("fsdp_sharding_strategy: 1, fsdp_reshard_after_forward: 2"),
            Json({{"strategy", "full_shard"}}));
  EXPECT_EQ(parallel("fsdp_sharding_strategy: HYBRID_SHARD", "num_machines: 5\n", {6, 2}),
            Json({{"strategy", "full_shard"}, {"dp_replicate", 3}}));
  EXPECT_EQ(parallel("fsdp_sharding_strategy: HYBRID_SHARD_ZERO2"),
            Json({{"strategy", "shard_grad_op"}, {"dp_replicate", 1}}));
  EXPECT_EQ(parallel("fsdp_version: 2"), Json({{"strategy", "full_shard"}}));
  EXPECT_EQ(parallel("fsdp_version: 2, fsdp_reshard_after_forward: false"),
            Json({{"strategy", "shard_grad_op"}}));
  EXPECT_EQ(parallel("fsdp_version: 2",
                     "parallelism_config: {parallelism_config_dp_replicate_size: 2}\n"),
            Json({{"strategy", "full_shard"}, {"dp_replicate", 2}}));
}

TEST(AccelerateSettingsTest, OtherSettings) {
  EXPECT_EQ(Settings("distributed_type: FSDP\nmixed_precision: bf16\n").settings.at("precision"),
            Json({{"param", "bfloat16"}, {"reduce", "bfloat16"}, {"output", "float32"}}));
  EXPECT_EQ(
      Settings("distributed_type: 'NO'\nmixed_precision: no\n").settings,
      Json({{"precision", {{"param", "float32"}, {"reduce", "float32"}, {"output", "float32"}}}}));
  EXPECT_EQ(Settings(Fsdp("fsdp_activation_checkpointing: true")).settings.at("train"),
            Json({{"activation_checkpointing", true}}));
  EXPECT_EQ(Settings("distributed_type: 'NO'\nuse_cpu: true\n").settings,
            Json({{"parallel", {{"backend", "shm"}}}}));
  const auto backend = [](const std::string& machines, const AccelerateWorld& world) {
    return Settings("distributed_type: FSDP\nuse_cpu: true\nnum_machines: " + machines, world)
        .settings.at("parallel")
        .at("backend");
  };
  EXPECT_EQ(backend("1", {4, 2}), "gloo");
  EXPECT_EQ(backend("2", {2, 2}), "shm");
}

TEST(AccelerateSettingsTest, EveryOtherKeyIsToldOnce) {
  EXPECT_THAT(Settings(Fsdp("fsdp_version: 2")).notes, IsEmpty());
  EXPECT_THAT(
      Settings(Fsdp("fsdp_use_orig_params: true, fsdp_forward_prefetch: false, fsdp_new: 1") +
               "num_processes: 2\nmachine_rank: 0\n")
          .notes,
      ElementsAre(HasSubstr("f.yaml:2: fsdp_config.fsdp_new: this key is not known"),
                  "f.yaml: for the launcher (fsdprun --accelerate-config): machine_rank, "
                  "num_processes",
                  "f.yaml: has no meaning here: fsdp_config.fsdp_forward_prefetch, "
                  "fsdp_config.fsdp_use_orig_params"));
}

TEST(AccelerateSettingsTest, KeysThatDoNotCountHereAreToldToo) {
  const auto told = [](const std::string& yaml) { return Settings(yaml).notes; };
  EXPECT_THAT(told(Fsdp("fsdp_version: 2, fsdp_sharding_strategy: NO_SHARD")),
              ElementsAre("f.yaml: has no meaning here: fsdp_config.fsdp_sharding_strategy"));
  EXPECT_THAT(told(Fsdp("fsdp_reshard_after_forward: true")),
              ElementsAre("f.yaml: has no meaning here: fsdp_config.fsdp_reshard_after_forward"));
  const std::string none =
      "distributed_type: 'NO'\nfsdp_config: {fsdp_activation_checkpointing: true, "
      "fsdp_offload_params: true}\n";
  EXPECT_THAT(told(none),
              ElementsAre("f.yaml: has no meaning here: fsdp_config.fsdp_activation_checkpointing, "
                          "fsdp_config.fsdp_offload_params"));
  EXPECT_EQ(Settings(none).settings, Json::object());
}

TEST(AccelerateSettingsTest, OwnSettingsCountBeforeTheFile) {
  const std::vector<std::string> overrides = {"model.config=m", "data.train=[\"t\"]",
                                              "parallel.strategy=full_shard"};
  const Json settings = {{"parallel", {{"strategy", "shard_grad_op"}, {"dp_replicate", 2}}}};
  const Json config =
      ResolveConfig({.settings = settings, .settings_source = "f.yaml", .overrides = overrides});
  EXPECT_EQ(config.at("parallel").at("strategy"), "full_shard");
  EXPECT_EQ(config.at("parallel").at("dp_replicate"), 2);
  EXPECT_THROW(ResolveConfig({.settings = settings, .settings_source = "f.yaml"}), ConfigError);
}

TEST(AccelerateSettingsTest, TheFlagNamesTheFile) {
  EXPECT_EQ(ParseCommandLine({"--accelerate-config", "f", "--config", "c"}).accelerate_config, "f");
  EXPECT_THROW(ParseCommandLine({"sample", "--checkpoint", "d", "--accelerate-config", "f"}),
               UsageError);
}

}  // namespace
}  // namespace fsdprun::worker
