#include "worker/config/config.h"

#include "worker/config/config_schema.h"
#include "worker/config/resolve.h"
#include "worker/config/training_rules.h"

namespace fsdprun::worker {
namespace {

void ParseModelAndData(const Json& resolved, TrainConfig& config) {
  const Json& model = resolved.at("model");
  config.model = {model.at("config"), model.at("weights"), model.at("seed"), model.at("on_change"),
                  model.at("kernels") == "fused"};
  config.lora = ParseLora(resolved.at("lora"), "configuration");
  const Json& data = resolved.at("data");
  config.data = {data.at("train").is_null() ? Json::array() : data.at("train"),
                 data.at("valid"),
                 data.at("seq_len"),
                 data.at("shuffle"),
                 data.at("seed"),
                 data.at("on_change"),
                 data.at("format"),
                 data.at("dtype"),
                 data.at("sampler"),
                 data.at("drop_last"),
                 data.at("documents"),
                 data.at("document_end"),
                 {}};
  for (const Json& source : data.at("mixture")) {
    config.data.mixture.push_back({source.at("files"), source.at("weight")});
  }
}

void ParseTrain(const Json& train, TrainConfig& config) {
  config.train = {train.at("steps"),
                  train.at("micro_batch_size"),
                  train.at("grad_accumulation"),
                  train.at("global_batch_size"),
                  train.at("sync_each_micro_batch"),
                  train.at("max_grad_norm"),
                  train.at("activation_checkpointing"),
                  train.at("freeze"),
                  train.at("eval_every"),
                  train.at("eval_batches"),
                  train.at("on_nonfinite"),
                  train.at("on_spike"),
                  train.at("spike_window"),
                  train.at("spike_deviations"),
                  train.at("max_bad_steps"),
                  train.at("max_rollbacks"),
                  train.at("deterministic"),
                  train.at("on_out_of_memory")};
}

void ParseOptimizer(const Json& optimizer, TrainConfig& config) {
  const std::string name = optimizer.at("name");
  const bool is_muon = name == "muon";
  const auto or_auto = [&optimizer](const char* key, const Json& otherwise) {
    return optimizer.at(key) == "auto" ? otherwise : optimizer.at(key);
  };
  config.optimizer = {name,
                      optimizer.at("lr"),
                      optimizer.at("betas")[0],
                      optimizer.at("betas")[1],
                      optimizer.at("eps"),
                      optimizer.at("weight_decay"),
                      optimizer.at("no_decay"),
                      or_auto("momentum", is_muon ? 0.95 : 0.0),
                      optimizer.at("dampening"),
                      or_auto("nesterov", is_muon),
                      optimizer.at("ns_steps"),
                      optimizer.at("adjust_lr_fn"),
                      or_auto("adamw_lr", optimizer.at("lr"))};
}

void ParseTraining(const Json& resolved, TrainConfig& config) {
  ParseTrain(resolved.at("train"), config);
  ParseOptimizer(resolved.at("optimizer"), config);
  config.schedule = ParseSchedule(resolved.at("schedule"), config.train.steps);
}

void ParseMetrics(const Json& section, TrainConfig::Metrics& metrics) {
  metrics.jsonl = section.at("jsonl");
  metrics.tensorboard = section.at("tensorboard");
  metrics.every_steps = section.at("every_steps");
  if (section.at("peak_flops").is_number()) {
    metrics.peak_flops = section.at("peak_flops").get<double>();
  }
  metrics.trace_dir = section.at("trace_dir");
  metrics.trace_first = section.at("trace_steps")[0];
  metrics.trace_last = section.at("trace_steps")[1];
}

}  // namespace

Json ResolveConfig(const std::string& path, const std::vector<std::string>& overrides) {
  return ResolveConfig(ConfigSources{.file = path, .overrides = overrides});
}

Json ResolveConfigForUse(const Json& trained, const std::string& source,
                         const std::vector<std::string>& overrides) {
  Json config = DefaultConfig();
  config["model"]["config"] = kModelOfCheckpoint;
  config["data"]["train"] = Json::array({kModelOfCheckpoint});
  const auto take = [&](const char* section, const std::vector<const char*>& keys) {
    for (const char* key : keys) {
      if (trained.contains(section) && trained.at(section).is_object() &&
          trained.at(section).contains(key)) {
        MergeConfig(config, {{section, {{key, trained.at(section).at(key)}}}}, source);
      }
    }
  };
  take("data", {"seq_len"});
  take("precision", {"param", "reduce", "output"});
  take("lora", {"rank", "alpha", "targets"});
  if (config.at("lora").at("rank") != 0) {
    take("model", {"weights", "seed"});  // the base, which the checkpoint does not have
  }
  for (const std::string& assignment : overrides) {
    ApplyOverride(config, assignment);
  }
  ValidateConfig(config);
  return config;
}

TrainConfig ParseConfig(const Json& resolved) {
  TrainConfig config;
  ParseModelAndData(resolved, config);
  ParseTraining(resolved, config);
  const Json& parallel = resolved.at("parallel");
  config.parallel = {parallel.at("backend"), parallel.at("strategy"), parallel.at("dp_replicate"),
                     parallel.at("timeout_seconds")};
  const Json& precision = resolved.at("precision");
  config.precision = {precision.at("param"), precision.at("reduce"), precision.at("output")};
  const Json& checkpoint = resolved.at("checkpoint");
  config.checkpoint = {checkpoint.at("dir"),           checkpoint.at("every_steps"),
                       checkpoint.at("every_minutes"), checkpoint.at("keep"),
                       checkpoint.at("keep_every"),    checkpoint.at("async"),
                       checkpoint.at("on_failure"),    checkpoint.at("resume"),
                       checkpoint.at("takeover"),      checkpoint.at("claim_timeout_seconds")};
  ParseMetrics(resolved.at("metrics"), config.metrics);
  return config;
}

bool WillSave(const TrainConfig& config, std::optional<int64_t> done, int64_t step) {
  if (step >= config.train.steps) {
    return step == config.train.steps && done.value_or(-1) < step;
  }
  const int64_t every = config.checkpoint.every_steps;
  return every > 0 && step > done.value_or(0) && step % every == 0;
}

bool MatchesPattern(std::string_view name, std::string_view pattern) {
  // Greedy with backtracking to the last star only, which can always match one more character.
  size_t at = 0;
  size_t in_pattern = 0;
  size_t star = std::string_view::npos;
  size_t star_end = 0;
  while (at < name.size()) {
    if (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
      star = in_pattern++;
      star_end = at;
    } else if (in_pattern < pattern.size() && pattern[in_pattern] == name[at]) {
      ++in_pattern;
      ++at;
    } else if (star != std::string_view::npos) {
      in_pattern = star + 1;
      at = ++star_end;
    } else {
      return false;
    }
  }
  while (in_pattern < pattern.size() && pattern[in_pattern] == '*') {
    ++in_pattern;
  }
  return in_pattern == pattern.size();
}

}  // namespace fsdprun::worker
