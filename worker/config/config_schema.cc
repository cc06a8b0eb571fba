#include "worker/config/config_schema.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <sstream>

namespace fsdprun::worker {
namespace {

// Far above any use; keeps sums and products of counts inside int64.
constexpr int64_t kMaxCount = int64_t{1} << 40;

template <int64_t kLow>
bool IsCount(const Json& value) {
  // A number beyond int64 becomes negative here.
  return value.get<int64_t>() >= kLow && value.get<int64_t>() <= kMaxCount;
}
bool IsTimeout(const Json& value) {
  constexpr int64_t kWeek = 7 * 24 * 3600;
  return IsCount<1>(value) && value.get<int64_t>() <= kWeek;
}
bool IsSeed(const Json& value) { return value.get<int64_t>() >= 0; }
// At most what a float32 can hold, because the kernels use float32.
bool IsNotNegative(const Json& value) {
  return value.get<double>() >= 0 && value.get<double>() <= std::numeric_limits<float>::max();
}
bool IsPositive(const Json& value) { return value.get<double>() > 0; }
bool IsClaimTimeout(const Json& value) {
  return value.get<double>() >= 0.01 && value.get<double>() <= 300;
}
bool IsFraction(const Json& value) { return value.get<double>() >= 0 && value.get<double>() <= 1; }
bool IsOne(const Json& value) { return value == 1; }
bool IsNotEmpty(const Json& value) { return !value.empty() && value != ""; }
bool IsEmptyText(const Json& value) { return value == ""; }
bool AreBetas(const Json& value) {
  return value.size() == 2 && std::all_of(value.begin(), value.end(), [](const Json& beta) {
           return beta.get<double>() >= 0 && beta.get<double>() < 1;
         });
}
bool IsText(const Json& value) { return value == "text"; }
bool IsOnChange(const Json& value) { return value == "refuse" || value == "warn"; }
bool IsOnFailure(const Json& value) { return value == "warn" || value == "stop"; }
bool IsByte(const Json& value) { return value == "byte"; }
bool IsAdamW(const Json& value) { return value == "adamw"; }
bool IsScheduleKind(const Json& value) {
  return value == "constant" || value == "linear" || value == "cosine";
}
bool IsBackend(const Json& value) {
  return value == "auto" || value == "shm" || value == "gloo" || value == "nccl";
}
bool IsStrategy(const Json& value) { return value == "full_shard" || value == "shard_grad_op"; }
bool IsDtype(const Json& value) { return value == "float32" || value == "bfloat16"; }

constexpr std::string_view kDtypes = "\"float32\" or \"bfloat16\"";

bool HasKind(const Json& value, ValueKind kind) {
  switch (kind) {
    case ValueKind::kString:
      return value.is_string();
    case ValueKind::kInteger:
      return value.is_number_integer();
    case ValueKind::kNumber:
      return value.is_number() && std::isfinite(value.get<double>());
    case ValueKind::kBoolean:
      return value.is_boolean();
    case ValueKind::kStringList:
      return value.is_array() && std::all_of(value.begin(), value.end(), [](const Json& entry) {
               return entry.is_string() && entry != "";
             });
    case ValueKind::kBetas:
      return value.is_array() && std::all_of(value.begin(), value.end(),
                                             [](const Json& beta) { return beta.is_number(); });
  }
  return false;
}

std::string_view SectionOf(std::string_view path) { return path.substr(0, path.find('.')); }
std::string_view NameOf(std::string_view path) { return path.substr(path.find('.') + 1); }

const ConfigKey* FindKey(std::string_view path) {
  for (const ConfigKey& key : ConfigSchema()) {
    if (key.path == path) {
      return &key;
    }
  }
  return nullptr;
}

size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

/// "; did you mean X?" for the nearest candidate, or nothing if none is close.
std::string Suggest(std::string_view given, const std::vector<std::string_view>& candidates) {
  std::string_view best;
  size_t best_distance = given.size() / 3 + 2;
  for (std::string_view candidate : candidates) {
    const size_t distance = EditDistance(given, candidate);
    if (distance < best_distance) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best.empty() ? "" : "; did you mean " + std::string(best) + "?";
}

std::vector<std::string_view> SectionNames() {
  std::vector<std::string_view> names;
  for (const ConfigKey& key : ConfigSchema()) {
    if (names.empty() || names.back() != SectionOf(key.path)) {
      names.push_back(SectionOf(key.path));
    }
  }
  return names;
}

[[noreturn]] void RefuseUnknown(const std::string& path, const Json& value,
                                const std::string& source) {
  std::vector<std::string_view> candidates;
  for (const ConfigKey& key : ConfigSchema()) {
    candidates.push_back(key.path);
  }
  // The right name in the wrong section is a better suggestion than a similar spelling.
  for (const ConfigKey& key : ConfigSchema()) {
    if (path.find('.') != std::string::npos && NameOf(key.path) == NameOf(path)) {
      candidates = {key.path};
    }
  }
  std::string suggestion = Suggest(path, candidates);
  if (suggestion.empty() && candidates.size() == 1) {
    suggestion = "; did you mean " + std::string(candidates.front()) + "?";
  }
  throw ConfigError(source + ": " + path + " = " + Excerpt(value) +
                    ": expected a known key (see fsdp-train --help)" + suggestion);
}

void Assign(Json& config, const std::string& path, const Json& value, const std::string& source) {
  if (FindKey(path) == nullptr) {
    RefuseUnknown(path, value, source);
  }
  config[std::string(SectionOf(path))][std::string(NameOf(path))] = value;
}

bool IsUtf8(std::string_view text) {
  try {
    Json(std::string(text)).dump();
    return true;
  } catch (const Json::exception&) {
    return false;
  }
}

/// Discarded if it is not a JSON value. The depth is limited, because no key has a deeply nested
/// value.
Json ParseOverride(const std::string& text) {
  constexpr int kMaxDepth = 8;
  const auto keep = [](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) {
      throw ConfigError("--set: nested deeper than " + std::to_string(kMaxDepth));
    }
    return true;
  };
  return Json::parse(text, keep, /*allow_exceptions=*/false);
}

}  // namespace

const std::vector<ConfigKey>& ConfigSchema() {
  using enum ValueKind;
  static const std::vector<ConfigKey> schema = {
      {"model.config", kString, "", "a path",
       "HF model directory or its config.json (llama, qwen2, qwen3, mistral, gpt2)", IsNotEmpty},
      {"model.weights", kString, "\"none\"", "\"none\" or a path",
       "HF directory with model.safetensors (or its index), such a file, or a checkpoint; none: "
       "random weights",
       IsNotEmpty},
      {"model.seed", kInteger, "0", "an integer from 0 to 2^63-1",
       "seed of the random weights; the same at every world size", IsSeed},
      {"model.on_change", kString, "\"refuse\"", "\"refuse\" or \"warn\"",
       "resuming with a model that computes something else from the checkpoint's weights, such as "
       "another rope_theta; warn: continue with it",
       IsOnChange},

      {"data.train", kStringList, "", "a list of at least one path",
       "text files, read as one stream in this order", IsNotEmpty},
      {"data.valid", kStringList, "[]", "a list of paths", "text files for evaluation", nullptr},
      {"data.format", kString, "\"text\"", "\"text\"", "file format", IsText},
      {"data.tokenizer", kString, "\"byte\"", "\"byte\"", "one token (0..255) per byte", IsByte},
      {"data.seq_len", kInteger, "256", "an integer >= 1", "tokens per window", IsCount<1>},
      {"data.shuffle", kBoolean, "true", "true or false",
       "permute the windows of every epoch as DistributedSampler does", nullptr},
      {"data.seed", kInteger, "0", "an integer from 0 to 2^63-1", "seed of the permutation",
       IsSeed},
      {"data.on_change", kString, "\"refuse\"", "\"refuse\" or \"warn\"",
       "resuming with another text or order than the checkpoint's, so that the position is lost; "
       "warn: continue after as many tokens of the epoch",
       IsOnChange},

      {"train.steps", kInteger, "1000", "an integer >= 0", "optimizer steps of the whole run",
       IsCount<0>},
      {"train.micro_batch_size", kInteger, "1", "an integer >= 1",
       "windows per rank in one forward", IsCount<1>},
      {"train.grad_accumulation", kInteger, "1", "an integer >= 1",
       "forwards per rank and optimizer step", IsCount<1>},
      {"train.sync_each_micro_batch", kBoolean, "true", "true or false",
       "reduce the gradients after each forward of train.grad_accumulation, so that a rank keeps a "
       "shard of their sum; false: after the last one only, with less communication and whole "
       "gradients kept in between",
       nullptr},
      {"train.max_grad_norm", kNumber, "1.0", "a number from 0 to 3.4e38",
       "clip the global gradient norm to this; 0: never", IsNotNegative},
      {"train.activation_checkpointing", kBoolean, "false", "true or false",
       "recompute each block in backward instead of keeping its activations", nullptr},
      {"train.eval_every", kInteger, "0", "an integer >= 0",
       "steps between evaluations on data.valid; 0: never (then also not at the end)", IsCount<0>},
      {"train.eval_batches", kInteger, "0", "an integer >= 0",
       "micro batches per rank in one evaluation; 0: all of data.valid", IsCount<0>},

      {"optimizer.name", kString, "\"adamw\"", "\"adamw\"", "optimizer", IsAdamW},
      {"optimizer.lr", kNumber, "0.001", "a number from 0 to 3.4e38", "peak learning rate",
       IsNotNegative},
      {"optimizer.betas", kBetas, "[0.9, 0.999]", "a list of two numbers in [0, 1)",
       "decay rates of the moment estimates", AreBetas},
      {"optimizer.eps", kNumber, "1e-8", "a number > 0", "added to the denominator", IsPositive},
      {"optimizer.weight_decay", kNumber, "0.01", "a number from 0 to 3.4e38",
       "decoupled weight decay", IsNotNegative},
      {"optimizer.no_decay", kStringList, "[]", "a list of name patterns",
       "parameters without weight decay; * stands for any text, e.g. \"*norm.weight\"", nullptr},

      {"schedule.kind", kString, "\"constant\"", "\"constant\", \"linear\" or \"cosine\"",
       "course of the learning rate after warm-up", IsScheduleKind},
      {"schedule.warmup_steps", kInteger, "0", "an integer >= 0",
       "steps of linear warm-up: lr * (step + 1) / warmup_steps", IsCount<0>},
      {"schedule.min_lr_ratio", kNumber, "0.0", "a number from 0 to 1",
       "final learning rate of linear and cosine, as a fraction of lr", IsFraction},

      {"parallel.backend", kString, "\"auto\"", "\"auto\", \"shm\", \"gloo\" or \"nccl\"",
       "collectives; auto: nccl with GPUs, shm on one host, else gloo", IsBackend},
      {"parallel.strategy", kString, "\"full_shard\"", "\"full_shard\" or \"shard_grad_op\"",
       "full_shard frees parameters after forward, shard_grad_op after backward", IsStrategy},
      {"parallel.dp_replicate", kInteger, "1", "an integer >= 1 that divides the world size",
       "copies of the sharded model, each on its own ranks (hybrid sharding)", IsCount<1>},
      {"parallel.timeout_seconds", kInteger, "600", "an integer from 1 to 604800",
       "how long a rank waits for the others in a collective before the job fails", IsTimeout},
      {"parallel.tp", kInteger, "1", "1 (tensor parallelism is not supported)",
       "ranks that split each matrix", IsOne},

      {"precision.param", kString, "\"float32\"", kDtypes,
       "dtype of gathered parameters and compute; the shards stay float32", IsDtype},
      {"precision.reduce", kString, "\"float32\"", kDtypes, "dtype of gradient reduction", IsDtype},
      {"precision.output", kString, "\"float32\"", kDtypes, "dtype of the logits", IsDtype},

      {"checkpoint.dir", kString, "\"\"", "a path, or \"\" for no checkpoints",
       "directory of the run's checkpoints", nullptr},
      {"checkpoint.every_steps", kInteger, "0", "an integer >= 0",
       "steps between checkpoints; 0: only at the end", IsCount<0>},
      {"checkpoint.keep", kInteger, "2", "an integer >= 0",
       "newest checkpoints of the run that are kept; 0: all; other runs' and other programs' are "
       "neither counted nor removed",
       IsCount<0>},
      {"checkpoint.keep_every", kInteger, "0", "an integer >= 0",
       "checkpoints of steps that this divides are kept for ever, besides those of keep; 0: none",
       IsCount<0>},
      {"checkpoint.async", kBoolean, "true", "true or false",
       "write periodic checkpoints beside the training, which waits for copies in memory only, as "
       "large as the state; false: the next step waits for the files",
       nullptr},
      {"checkpoint.on_failure", kString, "\"warn\"", "\"warn\" or \"stop\"",
       "what follows a periodic checkpoint that could not be written; warn: training goes on and "
       "tries again at the next period; stop: it ends. The last one must succeed in any case",
       IsOnFailure},
      {"checkpoint.resume", kString, "\"auto\"", "\"auto\", \"none\" or a path",
       "auto: newest good checkpoint in dir, if any; none: from the start; a path: that one",
       IsNotEmpty},
      {"checkpoint.takeover", kBoolean, "false", "true or false",
       "take dir from another job that uses it, which then fails, instead of refusing to start",
       nullptr},
      {"checkpoint.claim_timeout_seconds", kNumber, "30", "a number from 0.01 to 300",
       "a job that has shown no life for so long no longer uses dir; the same for all jobs on it",
       IsClaimTimeout},

      {"metrics.jsonl", kString, "\"\"", "a path, or \"\" for no file",
       "one JSON record per step and evaluation", nullptr},
      {"metrics.tensorboard", kString, "\"\"",
       "\"\" (TensorBoard files are not supported; use metrics.jsonl)", "TensorBoard directory",
       IsEmptyText},
      {"metrics.every_steps", kInteger, "1", "an integer >= 0",
       "steps between metrics records and progress lines; 0: never", IsCount<0>},
  };
  return schema;
}

Json DefaultConfig() {
  Json config = Json::object();
  for (const ConfigKey& key : ConfigSchema()) {
    Json& section = config[std::string(SectionOf(key.path))];
    section[std::string(NameOf(key.path))] =
        key.default_value.empty() ? Json(nullptr) : Json::parse(key.default_value);
  }
  return config;
}

void MergeConfig(Json& config, const Json& document, const std::string& source) {
  if (!document.is_object()) {
    throw ConfigError(source + ": expected an object of sections, got " + Excerpt(document));
  }
  for (const auto& [section, keys] : document.items()) {
    const std::vector<std::string_view> sections = SectionNames();
    if (std::find(sections.begin(), sections.end(), section) == sections.end()) {
      throw ConfigError(source + ": " + section + " = " + Excerpt(keys) +
                        ": expected a known section" + Suggest(section, sections));
    }
    if (!keys.is_object()) {
      throw ConfigError(source + ": " + section + " = " + Excerpt(keys) + ": expected an object");
    }
    for (const auto& [name, value] : keys.items()) {
      Assign(config, section + "." + name, value, source);
    }
  }
}

void ApplyOverride(Json& config, std::string_view assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    throw ConfigError("--set " + std::string(assignment) +
                      ": expected section.key=value, e.g. train.steps=100");
  }
  const std::string path(assignment.substr(0, equals));
  const std::string text(assignment.substr(equals + 1));
  if (!IsUtf8(assignment)) {
    throw ConfigError("--set " + Excerpt(Json(std::string(assignment))) + ": expected UTF-8");
  }
  Json value = ParseOverride(text);
  const ConfigKey* key = FindKey(path);
  const bool wants_text = key != nullptr && key->kind == ValueKind::kString;
  if (value.is_discarded() || (wants_text && !value.is_string())) {
    value = text;
  }
  Assign(config, path, value, "--set");
}

void ValidateConfig(const Json& config) {
  for (const ConfigKey& key : ConfigSchema()) {
    const Json& value =
        config.at(std::string(SectionOf(key.path))).at(std::string(NameOf(key.path)));
    if (value.is_null() && key.default_value.empty()) {
      throw ConfigError("configuration: " + std::string(key.path) + " is missing: expected " +
                        std::string(key.expectation));
    }
    if (!HasKind(value, key.kind) || (key.is_valid != nullptr && !key.is_valid(value))) {
      throw ConfigError("configuration: " + std::string(key.path) + " = " + Excerpt(value) +
                        ": expected " + std::string(key.expectation));
    }
  }
}

std::string DescribeConfigKeys() {
  std::ostringstream out;
  std::string_view section;
  for (const ConfigKey& key : ConfigSchema()) {
    if (section != SectionOf(key.path)) {
      section = SectionOf(key.path);
      out << "\n" << section << "\n";
    }
    out << "  " << NameOf(key.path) << ": " << key.help << "\n      " << key.expectation << "; "
        << (key.default_value.empty() ? std::string("required")
                                      : "default " + std::string(key.default_value))
        << "\n";
  }
  return out.str();
}

}  // namespace fsdprun::worker
