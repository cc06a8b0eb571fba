#include "worker/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <tuple>

#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

using ::testing::ElementsAre;

const std::vector<std::string> kRequired = {"model.config=m", "data.train=[\"t\"]"};

std::vector<std::string> With(const std::string& assignment) {
  std::vector<std::string> overrides = kRequired;
  overrides.push_back(assignment);
  return overrides;
}

/// What the resolution says, or "accepted".
std::string Refusal(const std::vector<std::string>& overrides) {
  try {
    ResolveConfig("", overrides);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(ConfigTest, RequiredKeysAreNamed) {
  EXPECT_EQ(Refusal({}), "configuration: model.config is missing: expected a path");
  EXPECT_EQ(Refusal({"model.config=m"}),
            "configuration: data.train is missing: expected a list of at least one path");
  const std::string mixture = R"(data.mixture=[{"files": ["x"], "weight": 1}])";
  EXPECT_EQ(Refusal({"model.config=m", mixture}), "accepted");
  EXPECT_TRUE(ParseConfig(ResolveConfig("", {"model.config=m", mixture})).data.train.empty());
}

TEST(ConfigTest, SchemaIsExactlyTheContract) {
  const std::map<std::string, std::set<std::string>> contract = {
      {"model", {"config", "weights", "seed", "kernels", "on_change"}},
      {"lora", {"rank", "alpha", "targets"}},
      {"data",
       {"train", "valid", "mixture", "format", "dtype", "tokenizer", "seq_len", "shuffle",
        "sampler", "drop_last", "documents", "document_end", "seed", "on_change"}},
      {"train",
       {"steps", "micro_batch_size", "grad_accumulation", "max_grad_norm", "sync_each_micro_batch",
        "activation_checkpointing", "eval_every", "eval_batches", "global_batch_size",
        "on_nonfinite", "on_spike", "spike_window", "spike_deviations", "max_bad_steps",
        "max_rollbacks", "deterministic", "freeze", "on_out_of_memory", "step_graph"}},
      {"optimizer",
       {"name", "lr", "betas", "eps", "weight_decay", "no_decay", "momentum", "dampening",
        "nesterov", "ns_steps", "adjust_lr_fn", "adamw_lr", "fused"}},
      {"schedule",
       {"kind", "warmup_steps", "min_lr_ratio", "decay_steps", "decay_fraction", "decay_shape"}},
      {"parallel", {"backend", "strategy", "dp_replicate", "timeout_seconds", "tp"}},
      {"precision", {"param", "reduce", "output"}},
      {"checkpoint",
       {"dir", "every_steps", "every_minutes", "keep", "keep_every", "async", "on_failure",
        "resume", "takeover", "claim_timeout_seconds"}},
      {"metrics",
       {"jsonl", "tensorboard", "every_steps", "peak_flops", "trace_dir", "trace_steps"}}};
  std::map<std::string, std::set<std::string>> actual;
  for (const ConfigKey& key : ConfigSchema()) {
    const std::string path(key.path);
    actual[path.substr(0, path.find('.'))].insert(path.substr(path.find('.') + 1));
  }
  EXPECT_EQ(actual, contract);
}

TEST(ConfigTest, EveryDefaultIsValid) {
  EXPECT_NO_THROW(ValidateConfig(ResolveConfig("", kRequired)));
}

struct KeyCase {
  std::string key;
  std::vector<std::string> good;
  std::vector<std::string> bad;
};

std::vector<KeyCase> KeyCases() {
  const std::vector<std::string> bad_count = {
      "-1", "1.5", "\"7\"", "true", "[]", "null", "18446744073709551615", "99999999999999999999"};
  std::vector<std::string> bad_positive = bad_count;
  bad_positive.push_back("0");
  const std::vector<std::string> bad_number = {"-0.1", "\"a\"", "true", "null", "[1]"};
  const std::vector<std::string> bad_flag = {"1", "\"true\"", "yes", "null"};
  const std::vector<std::string> bad_list = {"\"a.txt\"", "[1]", "[\"\"]", "{}", "a.txt"};
  return {
      {"model.config", {"dir", "\"dir\"", "7"}, {"", "\"\""}},
      {"model.weights", {"none", "dir"}, {""}},
      {"model.seed", {"0", "9223372036854775807"}, {"-1", "1.5", "\"1\"", "9223372036854775808"}},
      {"data.train",
       {"[\"a\", \"b\"]"},
       [&] {
         auto bad = bad_list;
         bad.push_back("[]");
         return bad;
       }()},
      {"model.on_change", {"refuse", "warn"}, {"ignore", "", "true"}},
      {"model.kernels", {"reference", "fused"}, {"fast", "", "true"}},
      {"data.valid", {"[]", "[\"a\"]"}, bad_list},
      {"data.format", {"auto", "text", "llmc", "megatron", "datatrove", "raw"}, {"parquet", ""}},
      {"data.dtype", {"auto", "uint16", "int64"}, {"float32", "uint64", ""}},
      {"data.sampler", {"torch", "global"}, {"random", ""}},
      {"data.drop_last", {"true", "false"}, bad_flag},
      {"data.documents", {"join", "mask", "separate"}, {"split", ""}},
      {"data.document_end", {"-1", "0", "50256"}, {"-2", "1.5", "\"0\"", "9223372036854775808"}},
      {"data.mixture",
       {"[]", R"([{"files": ["a", "b"], "weight": 0.5}])"},
       {"[1]", "{}", R"([{"files": [], "weight": 1}])", R"([{"files": ["a"]}])",
        R"([{"files": ["a"], "weight": 0}])", R"([{"files": ["a"], "weight": "1"}])",
        R"([{"files": ["a"], "weight": 1, "more": 1}])", R"([{"files": "a", "weight": 1}])"}},
      {"data.tokenizer", {"byte", "bytes"}, {"gpt2"}},
      {"data.seq_len", {"1", "4096"}, bad_positive},
      {"data.shuffle", {"true", "false"}, bad_flag},
      {"data.seed", {"3"}, {"-3", "x"}},
      {"data.on_change", {"refuse", "warn"}, {"ignore", ""}},
      {"train.steps", {"0", "1"}, bad_count},
      {"train.micro_batch_size", {"1"}, bad_positive},
      {"train.grad_accumulation", {"1", "8"}, bad_positive},
      {"train.sync_each_micro_batch", {"true", "false"}, bad_flag},
      {"train.max_grad_norm", {"0", "1", "0.5"}, bad_number},
      {"train.activation_checkpointing", {"true", "false"}, bad_flag},
      {"train.eval_every", {"0", "5"}, bad_count},
      {"train.eval_batches", {"0", "5"}, bad_count},
      {"train.global_batch_size", {"0", "8"}, bad_count},
      {"train.on_nonfinite", {"stop", "skip"}, {"off", "ignore", ""}},
      {"train.on_spike", {"off", "stop", "skip"}, {"ignore", "", "true"}},
      {"train.spike_window", {"100"}, {"0", "1", "1.5", "100001", "x"}},
      {"train.spike_deviations", {"6"}, {"0", "-1", "x", "true"}},
      {"train.max_bad_steps", {"0", "5"}, bad_count},
      {"train.max_rollbacks", {"0", "5"}, bad_count},
      {"train.deterministic", {"true", "false"}, bad_flag},
      {"train.step_graph", {"true", "false"}, bad_flag},
      {"train.on_out_of_memory", {"stop"}, {"skip", "", "true"}},
      {"train.freeze", {"[]", "[\"*norm*\"]"}, bad_list},
      // What needs adapters: training_rules_test.cc.
      {"lora.rank", {"0", "8", "65536"}, {"-1", "65537", "1.5", "\"8\"", "null"}},
      {"lora.alpha", {"16", "16.0"}, {"0", "-1", "\"8\"", "null"}},
      {"lora.targets", {"all-linear"}, {"[]", "[1]", "[\"\"]", "q_proj", "7"}},
      // What needs another optimizer or schedule: training_rules_test.cc.
      {"optimizer.name", {"adamw", "sgd", "muon"}, {"AdamW", "lion", ""}},
      {"optimizer.momentum", {"auto"}, {"1", "-0.1", "much", "true", "null"}},
      {"optimizer.dampening", {"0"}, {"-0.1", "1.1", "x"}},
      {"optimizer.nesterov", {"auto"}, {"1", "yes", "null"}},
      {"optimizer.fused", {"auto"}, {"1", "yes", "null"}},
      {"optimizer.ns_steps", {"5"}, {"0", "100", "1.5"}},
      {"optimizer.adjust_lr_fn", {"original"}, {"none", ""}},
      {"optimizer.adamw_lr", {"auto"}, {"-1", "x", "true"}},
      {"schedule.decay_steps", {"0"}, bad_count},
      {"schedule.decay_fraction", {"0.1"}, {"-0.1", "1.1", "x"}},
      {"schedule.decay_shape", {"linear"}, {"sqrt", ""}},
      {"optimizer.lr", {"0", "1e-3"}, bad_number},
      {"optimizer.betas",
       {"[0, 0.5]", "[0.9, 0.999]"},
       {"[0.9]", "[0.9, 1]", "[-0.1, 0.9]", "[0.9, 0.9, 0.9]", "0.9", "[\"a\", 0.9]"}},
      {"optimizer.eps", {"1e-8"}, {"0", "-1", "\"x\""}},
      {"optimizer.weight_decay", {"0", "0.1"}, bad_number},
      {"optimizer.no_decay", {"[]", "[\"*norm*\"]"}, bad_list},
      {"schedule.kind", {"constant", "linear", "cosine", "wsd"}, {"exponential", ""}},
      {"schedule.warmup_steps", {"0", "10"}, bad_count},
      {"schedule.min_lr_ratio", {"0", "1", "0.1"}, {"-0.1", "1.1", "\"x\""}},
      {"parallel.backend", {"auto", "shm", "gloo", "nccl"}, {"mpi"}},
      {"parallel.strategy", {"full_shard", "shard_grad_op"}, {"no_shard", "hybrid_shard"}},
      {"parallel.dp_replicate", {"1", "2"}, {"0", "\"1\"", "1.0"}},
      {"parallel.timeout_seconds", {"1", "604800"}, {"0", "604801", "1.5"}},
      {"parallel.tp", {"1"}, {"0", "2"}},
      {"precision.param", {"float32", "bfloat16"}, {"float16", "bf16"}},
      {"precision.reduce", {"float32", "bfloat16"}, {"float64"}},
      {"precision.output", {"float32", "bfloat16"}, {"int8"}},
      {"checkpoint.dir", {"", "/x", "5"}, {}},
      {"checkpoint.every_steps", {"0", "3"}, bad_count},
      {"checkpoint.every_minutes", {"0", "0.5", "30"}, bad_number},
      {"checkpoint.keep", {"0", "1", "3"}, bad_count},
      {"checkpoint.keep_every", {"0", "1000"}, bad_count},
      {"checkpoint.async", {"true", "false"}, bad_flag},
      {"checkpoint.on_failure", {"warn", "stop"}, {"ignore", ""}},
      {"checkpoint.resume", {"auto", "none", "/some/path"}, {""}},
      {"checkpoint.takeover", {"true", "false"}, bad_flag},
      {"checkpoint.claim_timeout_seconds", {"0.01", "30", "300"}, {"0", "-1", "301", "x"}},
      {"metrics.jsonl", {"", "m.jsonl"}, {}},
      {"metrics.tensorboard", {"", "runs/tb"}, {}},
      {"metrics.every_steps", {"0", "10"}, bad_count},
      {"metrics.peak_flops", {"auto", "0", "989e12"}, {"-1", "fast", "true", "null", "[1]"}},
      {"metrics.trace_dir", {"", "t"}, {}},
      {"metrics.trace_steps",
       {"[3, 4]", "[1, 1]"},
       {"[4, 3]", "[0, 1]", "[1]", "[1, 2, 3]", "3", "[1.5, 2]", "[\"1\", 2]"}},
  };
}

TEST(ConfigTest, EveryKeyTakesGoodValuesAndRefusesBadOnesByName) {
  std::set<std::string> covered;
  for (const KeyCase& key : KeyCases()) {
    covered.insert(key.key);
    for (const std::string& value : key.good) {
      EXPECT_EQ(Refusal(With(key.key + "=" + value)), "accepted") << key.key << "=" << value;
    }
    for (const std::string& value : key.bad) {
      const std::string refusal = Refusal(With(key.key + "=" + value));
      EXPECT_NE(refusal.find(key.key), std::string::npos) << key.key << "=" << value << refusal;
      EXPECT_NE(refusal.find("expected"), std::string::npos) << key.key << "=" << value << refusal;
      EXPECT_EQ(refusal.find('\n'), std::string::npos) << refusal;
    }
  }
  EXPECT_EQ(covered.size(), ConfigSchema().size());
}

TEST(ConfigTest, ErrorsHaveKeyValueAndExpectation) {
  EXPECT_EQ(Refusal(With("data.seq_len=0")),
            "configuration: data.seq_len = 0: expected an integer >= 1");
  EXPECT_EQ(Refusal(With("optimizer.betas=[0.9,1.5]")),
            "configuration: optimizer.betas = [0.9,1.5]: expected a list of two numbers in [0, 1)");
  EXPECT_EQ(Refusal(With("parallel.tp=2")),
            "configuration: parallel.tp = 2: expected 1 (tensor parallelism is not supported)");
}

TEST(ConfigTest, UnknownNamesGetASuggestion) {
  EXPECT_EQ(Refusal(With("train.step=5")),
            "--set: train.step = 5: expected a known key (see fsdp-train --help); did you mean "
            "train.steps?");
  EXPECT_EQ(Refusal(With("train.lr=5")),
            "--set: train.lr = 5: expected a known key (see fsdp-train --help); did you mean "
            "optimizer.lr?");
  EXPECT_EQ(Refusal(With("qqqqqqqqqqqqqqqqqqqq=5")),
            "--set: qqqqqqqqqqqqqqqqqqqq = 5: expected a known key (see fsdp-train --help)");
}

TEST(ConfigTest, OverrideWithoutAssignmentIsRefused) {
  for (const char* text : {"train.steps", "", "=5"}) {
    EXPECT_EQ(Refusal(With(text)),
              std::string("--set ") + text + ": expected section.key=value, e.g. train.steps=100");
  }
}

class ConfigFileTest : public testing::Test {
 protected:
  ~ConfigFileTest() override { std::filesystem::remove(path_); }
  std::string RefusalOf(const std::string& content) {
    std::ofstream(path_) << content;
    try {
      ResolveConfig(path_, kRequired);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  }
  const std::string path_ = testing::TempDir() + "config_" + std::to_string(getpid()) + ".json";
};

TEST_F(ConfigFileTest, SyntaxErrorsNameFileLineAndColumn) {
  const std::string refusal = RefusalOf("{\n  \"train\": {\"steps\": 5,}\n}");
  EXPECT_EQ(refusal.find(path_ + ":2:24: not valid JSON: "), 0u) << refusal;
  EXPECT_NE(RefusalOf("").find(path_ + ":1:1: not valid JSON"), std::string::npos);
}

TEST_F(ConfigFileTest, StructureErrorsAreNamed) {
  EXPECT_EQ(RefusalOf("[]"), path_ + ": expected an object of sections, got []");
  EXPECT_EQ(RefusalOf(R"({"train": 5})"), path_ + ": train = 5: expected an object");
  EXPECT_EQ(RefusalOf(R"({"trian": {}})"),
            path_ + ": trian = {}: expected a known section; did you mean train?");
  EXPECT_EQ(RefusalOf(R"({"train": {"steps": 1, "steps": 2}})"),
            path_ + ": key \"steps\" occurs twice in one object");
  EXPECT_EQ(RefusalOf(R"({"train": {"stepz": 1}})"),
            path_ +
                ": train.stepz = 1: expected a known key (see fsdp-train --help); did you mean "
                "train.steps?");
}

TEST_F(ConfigFileTest, UnreadableFileIsNamed) {
  try {
    ResolveConfig("/nonexistent/train.json", {});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_STREQ(error.what(), "cannot read /nonexistent/train.json: No such file or directory");
  }
}

TEST_F(ConfigFileTest, OverridesWinOverFileOverDefaults) {
  std::ofstream(path_) << R"({"train": {"steps": 7, "grad_accumulation": 3}})";
  std::vector<std::string> overrides = With("train.steps=9");
  overrides.push_back("optimizer.betas=[0.8, 0.95]");
  const TrainConfig config = ParseConfig(ResolveConfig(path_, overrides));
  EXPECT_EQ(config.train.steps, 9);
  EXPECT_EQ(config.train.grad_accumulation, 3);
  EXPECT_EQ(config.train.micro_batch_size, 1);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.95);
  EXPECT_EQ(config.schedule.total_steps, 9);
  EXPECT_EQ(config.data.train, std::vector<std::string>{"t"});
}

TEST_F(ConfigFileTest, PrintedConfigReadsBackTheSame) {
  const Json resolved = ResolveConfig("", With("optimizer.lr=0.0003"));
  std::ofstream(path_) << resolved.dump(2);
  EXPECT_EQ(ResolveConfig(path_, {}), resolved);
}

/// One for each key that has a choice, and no default.
std::vector<std::string> SettingOfEveryKey() {
  return {"model.config=c",
          "model.weights=w",
          "model.seed=1",
          "model.on_change=warn",
          "model.kernels=fused",
          R"(data.train=["t"])",
          R"(data.valid=["v", "u"])",
          "data.seq_len=2",
          "data.shuffle=false",
          "data.seed=3",
          "data.on_change=warn",
          "data.format=raw",
          "data.dtype=uint16",
          "data.sampler=global",
          "data.drop_last=true",
          "data.documents=mask",
          "data.document_end=20",
          R"(data.mixture=[{"files": ["x", "y"], "weight": 0.25}])",
          "train.steps=4",
          "train.micro_batch_size=5",
          "train.grad_accumulation=6",
          "train.sync_each_micro_batch=false",
          "train.max_grad_norm=7.5",
          "train.activation_checkpointing=true",
          "train.step_graph=true",
          "train.eval_every=8",
          "train.eval_batches=9",
          "train.on_nonfinite=skip",
          "train.on_spike=rollback",
          "train.spike_window=21",
          "train.spike_deviations=2.5",
          "train.max_bad_steps=22",
          "train.max_rollbacks=23",
          "train.deterministic=true",
          "train.on_out_of_memory=shrink",
          R"(train.freeze=["*z"])",
          "optimizer.lr=0.1",
          "optimizer.betas=[0.2, 0.3]",
          "optimizer.eps=0.4",
          "optimizer.weight_decay=0.5",
          R"(optimizer.no_decay=["*n"])",
          "schedule.kind=linear",
          "schedule.warmup_steps=10",
          "schedule.min_lr_ratio=0.6",
          "parallel.backend=gloo",
          "parallel.strategy=shard_grad_op",
          "parallel.dp_replicate=2",
          "parallel.timeout_seconds=14",
          "precision.param=bfloat16",
          "checkpoint.dir=d",
          "checkpoint.every_steps=11",
          "checkpoint.every_minutes=1.5",
          "checkpoint.keep=12",
          "checkpoint.keep_every=15",
          "checkpoint.async=false",
          "checkpoint.on_failure=stop",
          "checkpoint.resume=r",
          "checkpoint.takeover=true",
          "checkpoint.claim_timeout_seconds=12.5",
          "metrics.jsonl=m",
          "metrics.tensorboard=b",
          "metrics.every_steps=13",
          "metrics.peak_flops=1e12",
          "metrics.trace_dir=t",
          "metrics.trace_steps=[16, 17]"};
}

TEST(ConfigTest, EveryKeyReachesItsField) {
  const std::vector<std::string> settings = SettingOfEveryKey();
  std::set<std::string> others;
  for (const ConfigKey& key : ConfigSchema()) {
    others.insert(std::string(key.path));
  }
  for (const std::string& setting : settings) {
    EXPECT_EQ(others.erase(setting.substr(0, setting.find('='))), 1u) << setting;
  }
  // They have one possible value each, or are of another optimizer or schedule
  // (training_rules_test.cc); those of precision are below.
  EXPECT_THAT(others, ElementsAre("data.tokenizer", "lora.alpha", "lora.rank", "lora.targets",
                                  "optimizer.adamw_lr", "optimizer.adjust_lr_fn",
                                  "optimizer.dampening", "optimizer.fused", "optimizer.momentum",
                                  "optimizer.name", "optimizer.nesterov", "optimizer.ns_steps",
                                  "parallel.tp", "precision.output", "precision.reduce",
                                  "schedule.decay_fraction", "schedule.decay_shape",
                                  "schedule.decay_steps", "train.global_batch_size"));
  const TrainConfig config = ParseConfig(ResolveConfig("", settings));
  const auto& [model, lora, data, train, optimizer, schedule, parallel, precision, checkpoint,
               metrics] = config;
  EXPECT_EQ(std::tie(model.config, model.weights, model.seed, model.on_change),
            std::tuple("c", "w", 1u, "warn"));
  EXPECT_TRUE(model.has_fused_kernels);
  EXPECT_FALSE(lora.is_on());
  EXPECT_EQ(data.train, std::vector<std::string>{"t"});
  EXPECT_EQ(data.valid, (std::vector<std::string>{"v", "u"}));
  EXPECT_EQ(std::tie(data.seq_len, data.shuffle, data.seed, data.on_change),
            std::tuple(2, false, 3u, "warn"));
  EXPECT_EQ(std::tie(data.format, data.dtype, data.sampler, data.drop_last, data.documents,
                     data.document_end),
            std::tuple("raw", "uint16", "global", true, "mask", 20));
  ASSERT_EQ(data.mixture.size(), 1u);
  EXPECT_EQ(data.mixture[0].files, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(data.mixture[0].weight, 0.25);
  EXPECT_EQ(std::tie(train.steps, train.micro_batch_size, train.grad_accumulation,
                     train.sync_each_micro_batch),
            std::tuple(4, 5, 6, false));
  EXPECT_EQ(std::tie(train.max_grad_norm, train.activation_checkpointing, train.step_graph,
                     train.eval_every, train.eval_batches),
            std::tuple(7.5, true, true, 8, 9));
  EXPECT_EQ(train.freeze, std::vector<std::string>{"*z"});
  EXPECT_EQ(std::tie(train.on_nonfinite, train.on_spike, train.spike_window, train.spike_deviations,
                     train.max_bad_steps, train.max_rollbacks, train.deterministic,
                     train.on_out_of_memory),
            std::tuple("skip", "rollback", 21, 2.5, 22, 23, true, "shrink"));
  EXPECT_EQ(std::tie(optimizer.lr, optimizer.beta1, optimizer.beta2, optimizer.eps,
                     optimizer.weight_decay),
            std::tuple(0.1, 0.2, 0.3, 0.4, 0.5));
  EXPECT_EQ(optimizer.no_decay, std::vector<std::string>{"*n"});
  EXPECT_EQ(
      std::tie(schedule.kind, schedule.warmup_steps, schedule.min_lr_ratio, schedule.total_steps),
      std::tuple(ScheduleKind::kLinear, 10, 0.6, 4));
  EXPECT_EQ(std::tie(parallel.backend, parallel.strategy, parallel.dp_replicate),
            std::tuple("gloo", "shard_grad_op", 2));
  EXPECT_EQ(parallel.timeout_seconds, 14);
  EXPECT_EQ(std::tie(checkpoint.dir, checkpoint.every_steps, checkpoint.keep, checkpoint.keep_every,
                     checkpoint.is_async, checkpoint.on_failure),
            std::tuple("d", 11, 12, 15, false, "stop"));
  EXPECT_EQ(std::tie(checkpoint.resume, checkpoint.takeover, checkpoint.claim_timeout_seconds),
            std::tuple("r", true, 12.5));
  EXPECT_EQ(checkpoint.every_minutes, 1.5);
  EXPECT_EQ(std::tie(metrics.jsonl, metrics.tensorboard, metrics.every_steps),
            std::tuple("m", "b", 13));
  EXPECT_EQ(metrics.peak_flops, 1e12);
  EXPECT_EQ(std::tie(metrics.trace_dir, metrics.trace_first, metrics.trace_last),
            std::tuple("t", 16, 17));
}

TEST(ConfigTest, EveryPrecisionReachesItsField) {
  for (const std::string key : {"param", "reduce", "output"}) {
    const auto& precision =
        ParseConfig(ResolveConfig("", With("precision." + key + "=bfloat16"))).precision;
    EXPECT_EQ(precision.param == "bfloat16", key == "param");
    EXPECT_EQ(precision.reduce == "bfloat16", key == "reduce");
    EXPECT_EQ(precision.output == "bfloat16", key == "output");
  }
}

TEST(ConfigTest, DescriptionNamesEveryKey) {
  std::istringstream text(DescribeConfigKeys());
  const std::vector<ConfigKey>& schema = ConfigSchema();
  size_t described = 0;
  std::string section;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with(" ")) {
      section = line.empty() ? section : line;
      continue;
    }
    // Names occur in several sections, so each must stand under its own.
    ASSERT_LT(described, schema.size()) << line;
    const ConfigKey& key = schema[described++];
    const size_t colon = line.find(": ");
    ASSERT_NE(colon, std::string::npos) << line;
    EXPECT_EQ(section + "." + line.substr(2, colon - 2), key.path);
    EXPECT_EQ(line.substr(colon + 2), key.help);
    EXPECT_FALSE(key.help.empty()) << key.path;
    ASSERT_TRUE(std::getline(text, line)) << key.path;
    EXPECT_EQ(line, "      " + std::string(key.expectation) + "; " +
                        (key.default_value.empty() ? std::string("required")
                                                   : "default " + std::string(key.default_value)));
  }
  EXPECT_EQ(described, schema.size());
}

TEST(ConfigTest, SavedStepsAreThoseThatAreDueAndTheLast) {
  const auto saved = [](const char* steps, const char* every, std::optional<int64_t> done) {
    const TrainConfig config = ParseConfig(ResolveConfig(
        "", {"model.config=c", "data.train=[\"t\"]", std::string("train.steps=") + steps,
             "checkpoint.dir=d", std::string("checkpoint.every_steps=") + every}));
    std::vector<int64_t> found;
    for (int64_t step = 0; step < 12; ++step) {
      if (WillSave(config, done, step)) {
        found.push_back(step);
      }
    }
    return found;
  };
  using Steps = std::vector<int64_t>;
  EXPECT_EQ(saved("10", "4", std::nullopt), (Steps{4, 8, 10}));
  EXPECT_EQ(saved("8", "4", std::nullopt), (Steps{4, 8}));
  EXPECT_EQ(saved("10", "0", std::nullopt), (Steps{10}));
  EXPECT_EQ(saved("0", "4", std::nullopt), (Steps{0}));
  EXPECT_EQ(saved("10", "4", 0), (Steps{4, 8, 10}));
  EXPECT_EQ(saved("10", "4", 4), (Steps{8, 10}));
  EXPECT_EQ(saved("10", "4", 5), (Steps{8, 10}));
  EXPECT_EQ(saved("10", "4", 10), Steps{});
  EXPECT_EQ(saved("10", "4", 11), Steps{});
  EXPECT_EQ(saved("0", "4", 0), Steps{});
}

TEST(PatternTest, StarStandsForAnyText) {
  EXPECT_TRUE(MatchesPattern("model.norm.weight", "*norm.weight"));
  EXPECT_TRUE(MatchesPattern("model.norm.weight", "model.*"));
  EXPECT_TRUE(MatchesPattern("model.norm.weight", "*"));
  EXPECT_TRUE(MatchesPattern("a.b.a.b.c", "*a.b.c"));
  EXPECT_TRUE(MatchesPattern("abc", "abc"));
  EXPECT_TRUE(MatchesPattern("", "*"));
  EXPECT_FALSE(MatchesPattern("model.norm.weight", "norm"));
  EXPECT_FALSE(MatchesPattern("model.norm.weight", "*norm"));
  EXPECT_FALSE(MatchesPattern("abc", "abcd"));
  EXPECT_FALSE(MatchesPattern("abc", ""));
}

}  // namespace
}  // namespace fsdprun::worker
