#include "worker/config/config.h"

#include "worker/config/config_schema.h"
#include "worker/config/resolve.h"
#include "worker/config/training_rules.h"

namespace fsdprun::worker {
namespace {

void ParseModelAndData(const Json& resolved, TrainConfig& config) {
  const Json& model = resolved.at("model");
  config.model = {.config = model.at("config"),
                  .weights = model.at("weights"),
                  .seed = model.at("seed"),
                  .on_change = model.at("on_change"),
                  .has_fused_kernels = model.at("kernels") == "fused"};
  config.lora = ParseLora(resolved.at("lora"), "configuration");
  const Json& data = resolved.at("data");
  config.data = {.train = data.at("train").is_null() ? Json::array() : data.at("train"),
                 .valid = data.at("valid"),
                 .seq_len = data.at("seq_len"),
                 .shuffle = data.at("shuffle"),
                 .seed = data.at("seed"),
                 .on_change = data.at("on_change"),
                 .format = data.at("format"),
                 .dtype = data.at("dtype"),
                 .sampler = data.at("sampler"),
                 .drop_last = data.at("drop_last"),
                 .documents = data.at("documents"),
                 .document_end = data.at("document_end"),
                 .mixture = {}};
  for (const Json& source : data.at("mixture")) {
    config.data.mixture.push_back({source.at("files"), source.at("weight")});
  }
}

void ParseTrain(const Json& train, TrainConfig& config) {
  config.train = {.steps = train.at("steps"),
                  .micro_batch_size = train.at("micro_batch_size"),
                  .grad_accumulation = train.at("grad_accumulation"),
                  .global_batch_size = train.at("global_batch_size"),
                  .sync_each_micro_batch = train.at("sync_each_micro_batch"),
                  .max_grad_norm = train.at("max_grad_norm"),
                  .activation_checkpointing = train.at("activation_checkpointing"),
                  .step_graph = train.at("step_graph"),
                  .freeze = train.at("freeze"),
                  .eval_every = train.at("eval_every"),
                  .eval_batches = train.at("eval_batches"),
                  .on_nonfinite = train.at("on_nonfinite"),
                  .on_spike = train.at("on_spike"),
                  .spike_window = train.at("spike_window"),
                  .spike_deviations = train.at("spike_deviations"),
                  .max_bad_steps = train.at("max_bad_steps"),
                  .max_rollbacks = train.at("max_rollbacks"),
                  .deterministic = train.at("deterministic"),
                  .on_out_of_memory = train.at("on_out_of_memory")};
}

void ParseOptimizer(const Json& optimizer, TrainConfig& config) {
  const std::string name = optimizer.at("name");
  const bool is_muon = name == "muon";
  const auto or_auto = [&optimizer](const char* key, const Json& otherwise) {
    return optimizer.at(key) == "auto" ? otherwise : optimizer.at(key);
  };
  config.optimizer = {.name = name,
                      .lr = optimizer.at("lr"),
                      .beta1 = optimizer.at("betas")[0],
                      .beta2 = optimizer.at("betas")[1],
                      .eps = optimizer.at("eps"),
                      .weight_decay = optimizer.at("weight_decay"),
                      .no_decay = optimizer.at("no_decay"),
                      .momentum = or_auto("momentum", is_muon ? 0.95 : 0.0),
                      .dampening = optimizer.at("dampening"),
                      .nesterov = or_auto("nesterov", is_muon),
                      .ns_steps = optimizer.at("ns_steps"),
                      .adjust_lr_fn = optimizer.at("adjust_lr_fn"),
                      .adamw_lr = or_auto("adamw_lr", optimizer.at("lr")),
                      .fused = or_auto("fused", config.model.has_fused_kernels)};
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
  config.parallel = {.backend = parallel.at("backend"),
                     .strategy = parallel.at("strategy"),
                     .dp_replicate = parallel.at("dp_replicate"),
                     .timeout_seconds = parallel.at("timeout_seconds")};
  const Json& precision = resolved.at("precision");
  config.precision = {.param = precision.at("param"),
                      .reduce = precision.at("reduce"),
                      .output = precision.at("output")};
  const Json& checkpoint = resolved.at("checkpoint");
  config.checkpoint = {.dir = checkpoint.at("dir"),
                       .every_steps = checkpoint.at("every_steps"),
                       .every_minutes = checkpoint.at("every_minutes"),
                       .keep = checkpoint.at("keep"),
                       .keep_every = checkpoint.at("keep_every"),
                       .is_async = checkpoint.at("async"),
                       .on_failure = checkpoint.at("on_failure"),
                       .resume = checkpoint.at("resume"),
                       .takeover = checkpoint.at("takeover"),
                       .claim_timeout_seconds = checkpoint.at("claim_timeout_seconds")};
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
