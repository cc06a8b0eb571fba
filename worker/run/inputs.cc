#include "worker/run/inputs.h"

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/metrics/metrics.h"
#include "worker/run/refuse_for_good.h"
#include "worker/run/run_description.h"

namespace fsdprun::worker {
namespace {

constexpr int64_t kMaxStepTokens = int64_t{1} << 40;

std::shared_ptr<const TokenStream> OpenStream(const char* key,
                                              const std::vector<std::string>& paths,
                                              int64_t seq_len) {
  auto stream = std::make_shared<const TokenStream>(paths);
  if (stream->window_count(seq_len) == 0) {
    throw ConfigError(std::string(key) + ": the text has " + std::to_string(stream->size()) +
                      " bytes, one window needs data.seq_len + 1 = " + std::to_string(seq_len + 1) +
                      "; give more text or a shorter data.seq_len");
  }
  return stream;
}

/// Absolute; empty if it cannot be told, or not in JSON.
std::string FolderOf(const std::filesystem::path& file) {
  std::error_code error;
  const std::string folder =
      std::filesystem::absolute(file, error).lexically_normal().parent_path().string();
  const Json text = folder;
  const std::string kept = text.dump(-1, ' ', false, Json::error_handler_t::ignore);
  return !error && Json::parse(kept) == text ? folder : std::string();
}

void CheckStepTokens(const TrainConfig& config, int64_t world_size) {
  int64_t step_tokens = config.data.seq_len;
  for (const int64_t factor :
       {config.train.micro_batch_size, config.train.grad_accumulation, world_size}) {
    if (step_tokens > kMaxStepTokens / factor) {
      throw ConfigError(
          "configuration: train.micro_batch_size * train.grad_accumulation * data.seq_len * ranks: "
          "expected at most 2^40 tokens per step");
    }
    step_tokens *= factor;
  }
}

void CheckOutputs(const TrainConfig& config) {
  RefuseForGood<MetricsError>([&] { MetricsLog::CheckWritable(config.metrics.jsonl); });
  if (!config.checkpoint.dir.empty()) {
    RefuseForGood<checkpoint::CheckpointError>(
        [&] { checkpoint::CheckWritable(config.checkpoint.dir); });
  }
}

}  // namespace

void CheckModel(const TrainConfig& config, const ModelConfig& model, const std::string& source) {
  if (model.vocab_size < kByteTokens) {
    throw ConfigError(source + ": vocab_size = " + std::to_string(model.vocab_size) +
                      ": expected at least 256 for data.tokenizer \"byte\"");
  }
  if (config.data.seq_len > model.max_position_embeddings) {
    throw ConfigError("configuration: data.seq_len = " + std::to_string(config.data.seq_len) +
                      ": expected at most the model's max_position_embeddings = " +
                      std::to_string(model.max_position_embeddings));
  }
}

RunInputs ReadInputs(const Json& resolved, const WorkerEnvironment& environment) {
  RunInputs inputs{resolved, ParseConfig(resolved), {}, {}, nullptr, nullptr};
  const TrainConfig& config = inputs.config;
  const std::filesystem::path model_file = ModelConfigPath(config.model.config);
  inputs.description = {resolved, ReadStrictJsonFile(model_file), FolderOf(model_file)};
  const Json& model_config = inputs.description.model_config;
  inputs.model = ParseModelConfig(model_config, model_file.string());
  CheckDescribable(model_config, model_file.string());
  CheckModel(config, inputs.model, config.model.config);
  CheckStepTokens(config, environment.world_size);
  if (config.train.eval_every > 0 && config.data.valid.empty()) {
    throw ConfigError(
        "configuration: data.valid = []: expected at least one path, because "
        "train.eval_every is not 0");
  }
  if (environment.rank == 0) {
    CheckOutputs(config);
    for (const std::string& warning : inputs.model.warnings) {
      std::fprintf(stderr, "warning: %s: %s\n", config.model.config.c_str(), warning.c_str());
    }
  }
  inputs.train = OpenStream("data.train", config.data.train, config.data.seq_len);
  if (config.train.eval_every > 0) {
    inputs.valid = OpenStream("data.valid", config.data.valid, config.data.seq_len);
  }
  return inputs;
}

}  // namespace fsdprun::worker
