#include "worker/config/config.h"

#include "worker/config/config_schema.h"

namespace fsdprun::worker {
namespace {

void ParseModelAndData(const Json& resolved, TrainConfig& config) {
  const Json& model = resolved.at("model");
  config.model = {model.at("config"), model.at("weights"), model.at("seed"), model.at("on_change")};
  const Json& data = resolved.at("data");
  config.data = {data.at("train"),   data.at("valid"), data.at("seq_len"),
                 data.at("shuffle"), data.at("seed"),  data.at("on_change")};
}

void ParseTraining(const Json& resolved, TrainConfig& config) {
  const Json& train = resolved.at("train");
  config.train = {train.at("steps"),
                  train.at("micro_batch_size"),
                  train.at("grad_accumulation"),
                  train.at("sync_each_micro_batch"),
                  train.at("max_grad_norm"),
                  train.at("activation_checkpointing"),
                  train.at("eval_every"),
                  train.at("eval_batches")};
  const Json& optimizer = resolved.at("optimizer");
  config.optimizer = {optimizer.at("lr"),  optimizer.at("betas")[0],     optimizer.at("betas")[1],
                      optimizer.at("eps"), optimizer.at("weight_decay"), optimizer.at("no_decay")};
  const Json& schedule = resolved.at("schedule");
  const std::string kind = schedule.at("kind");
  config.schedule = {kind == "cosine"   ? ScheduleKind::kCosine
                     : kind == "linear" ? ScheduleKind::kLinear
                                        : ScheduleKind::kConstant,
                     schedule.at("warmup_steps"), schedule.at("min_lr_ratio"), config.train.steps};
}

}  // namespace

Json ResolveConfig(const std::string& path, const std::vector<std::string>& overrides) {
  Json config = DefaultConfig();
  if (!path.empty()) {
    MergeConfig(config, ReadStrictJsonFile(path), path);
  }
  for (const std::string& assignment : overrides) {
    ApplyOverride(config, assignment);
  }
  ValidateConfig(config);
  return config;
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
  config.checkpoint = {checkpoint.at("dir"),
                       checkpoint.at("every_steps"),
                       checkpoint.at("keep"),
                       checkpoint.at("keep_every"),
                       checkpoint.at("async"),
                       checkpoint.at("on_failure"),
                       checkpoint.at("resume"),
                       checkpoint.at("takeover"),
                       checkpoint.at("claim_timeout_seconds")};
  const Json& metrics = resolved.at("metrics");
  config.metrics = {metrics.at("jsonl"), metrics.at("every_steps")};
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
