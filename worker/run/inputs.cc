#include "worker/run/inputs.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/error.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/data/data_file.h"
#include "worker/data/open_tokens.h"
#include "worker/estimate/run_rules.h"
#include "worker/metrics/metrics.h"
#include "worker/metrics/writable_folder.h"
#include "worker/run/folder_tokenizers.h"
#include "worker/run/refuse_for_good.h"
#include "worker/run/run_description.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

/// The same id has to mean the same text in all of them.
void RequireOneTokenizer(const std::vector<Windows>& sources) {
  std::optional<TokenizerIdentity> first;
  for (const Windows& source : sources) {
    const TokenFacts& facts = source.stream().facts();
    if (facts.is_text != sources.front().stream().facts().is_text) {
      throw ConfigError(
          "configuration: data.mixture: some sources are text and some are tokens; make tokens of "
          "the text with fsdp-train tokenize");
    }
    if (facts.tokenizer && first && *facts.tokenizer != *first) {
      throw ConfigError(
          "configuration: data.mixture: the tokenizers of two sources have the digests " +
          first->digest + " and " + facts.tokenizer->digest +
          ": the same id means another text in each; make tokens of both with one "
          "tokenizer");
    }
    first = first ? first : facts.tokenizer;
  }
}

/// Which tokenizer the ids are of, if that is known.
std::optional<TokenizerIdentity> TokenizerOf(const TrainData& train) {
  return train.is_text() ? MakeByteTokenizer()->identity() : train.tokenizer();
}

/// A loss of text that means something else to the model says nothing.
void RequireTokenizerOf(const TrainData& train, const TokenFacts& valid) {
  const auto trained = TokenizerOf(train);
  const auto evaluated = valid.is_text ? MakeByteTokenizer()->identity() : valid.tokenizer;
  if (trained && evaluated && *trained != *evaluated) {
    throw ConfigError("data.valid: the digest of its tokenizer is " + evaluated->digest + " (" +
                      evaluated->kind + "), and that of the data to train on " + trained->digest +
                      " (" + trained->kind +
                      "): the same id means another text in each; make tokens of both with one "
                      "tokenizer");
  }
  if (train.is_text() != valid.is_text && !(trained && evaluated)) {
    throw ConfigError(std::string("data.valid: it is ") + (valid.is_text ? "text" : "tokens") +
                      ", and the data to train on are " + (valid.is_text ? "tokens" : "text") +
                      ": the same id means another text in each; make tokens of the text with "
                      "fsdp-train tokenize");
  }
}

/// The tokenizers beside the weights that are trained on, or else beside the model's config.json.
std::vector<FolderTokenizer> TokenizersOfWeights(const TrainConfig& config) {
  const std::filesystem::path weights = config.model.weights;
  std::error_code error;
  auto found =
      TokenizersIn(std::filesystem::is_directory(weights, error) ? weights : weights.parent_path());
  return found.empty() ? TokenizersIn(ModelConfigPath(config.model.config).parent_path()) : found;
}

/// What a model has learned of ids holds for those of its own tokenizer alone. Returns the warning
/// if data.on_change says so; empty: there is nothing to say.
std::string CheckTokenizerOfWeights(const TrainConfig& config, const TrainData& train) {
  const auto trained = TokenizerOf(train);
  if (config.model.weights == "none" || !trained) {
    return "";
  }
  const std::vector<FolderTokenizer> known = TokenizersOfWeights(config);
  const bool is_known = std::any_of(
      known.begin(), known.end(),
      [&](const FolderTokenizer& tokenizer) { return tokenizer.digest == trained->digest; });
  if (known.empty() || is_known) {
    return "";
  }
  const std::string text =
      "model.weights: the tokenizer beside them, " + known.front().path.string() +
      ", has the digest " + known.front().digest + ", and that of the data to train on is " +
      trained->digest + " (" + trained->kind + "): the same id means another text to the weights";
  if (config.data.on_change == "refuse") {
    throw ConfigError(text +
                      "; make tokens with that tokenizer (fsdp-train tokenize), or set "
                      "data.on_change to warn to train on these");
  }
  return text;
}

void WarnOnce(const WorkerEnvironment& environment, const std::string& warning) {
  if (environment.rank == 0 && !warning.empty()) {
    std::fprintf(stderr, "warning: %s\n", warning.c_str());
  }
}

OpenOptions HowToOpen(const char* key, const TrainConfig::Data& data, const ModelConfig& model) {
  OpenOptions options;
  options.key = key;
  options.vocab_size = model.vocab_size;
  options.layout.format = FindDataFormat(data.format);
  options.layout.wants_documents = DocumentsOf(data.documents) != Documents::kJoin;
  TokenDtype dtype = TokenDtype::kUint16;
  if (FindTokenDtype(data.dtype, dtype)) {
    options.layout.dtype = dtype;
  }
  if (data.document_end >= 0) {
    options.document_end = data.document_end;
  }
  return options;
}

Windows OpenWindows(const char* key, const std::vector<std::string>& files,
                    const TrainConfig& config, const ModelConfig& model) {
  const TrainConfig::Data& data = config.data;
  auto stream = OpenTokens(files, HowToOpen(key, data, model));
  if (stream->facts().is_text) {
    CheckBytes(model, config.model.config);
  }
  const std::string size = stream->facts().is_text
                               ? "the text has " + std::to_string(stream->size()) + " bytes"
                               : "the data have " + std::to_string(stream->size()) + " tokens";
  Windows windows(std::move(stream), data.seq_len, DocumentsOf(data.documents));
  if (windows.count() == 0) {
    throw ConfigError(
        std::string(key) + ": " + size + ", one window needs " +
        (data.documents == "separate"
             ? std::string("a document of at least 2; give other data or another data.documents")
             : "data.seq_len + 1 = " + std::to_string(data.seq_len + 1) +
                   "; give more text or a shorter data.seq_len"));
  }
  return windows;
}

void CheckOrder(const TrainConfig::Data& data) {
  if (data.mixture.empty() && data.sampler == "torch") {
    return;
  }
  if (!data.mixture.empty() && !data.train.empty()) {
    throw ConfigError(
        "configuration: data.mixture: expected none beside data.train; make the files of "
        "data.train one of its sources");
  }
  if (data.sampler == "torch") {
    throw ConfigError(
        "configuration: data.sampler = \"torch\": expected \"global\" with data.mixture, of which "
        "PyTorch's DistributedSampler knows nothing");
  }
  if (data.drop_last) {
    throw ConfigError(
        "configuration: data.drop_last = true: expected false with data.sampler = \"global\", "
        "which has no windows too few for all ranks");
  }
}

TrainData OpenTrainData(const TrainConfig& config, const ModelConfig& model, int64_t world_size) {
  const TrainConfig::Data& data = config.data;
  CheckOrder(data);
  if (data.mixture.empty()) {
    Windows windows = OpenWindows("data.train", data.train, config, model);
    if (data.drop_last && windows.count() < world_size) {
      throw ConfigError("data.train: " + std::to_string(windows.count()) +
                        " windows are fewer than the " + std::to_string(world_size) +
                        " ranks, so data.drop_last leaves out all of them; give more text or a "
                        "shorter data.seq_len");
    }
    return TrainData(std::move(windows));
  }
  std::vector<Windows> sources;
  std::vector<double> weights;
  for (const TrainConfig::Data::Source& source : data.mixture) {
    sources.push_back(OpenWindows("data.mixture", source.files, config, model));
    weights.push_back(source.weight);
  }
  RequireOneTokenizer(sources);
  return {std::move(sources), std::move(weights)};
}

/// Runs `open`, which every rank does with the same files: they all come to the same id.
template <class Open>
auto OpenAlike(Open&& open) {
  try {
    return open();
  } catch (const TokenIdError& error) {
    throw ConfigError(error.what());
  }
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

void CheckOutputs(const TrainConfig& config) {
  RefuseForGood<MetricsError>([&] {
    MetricsLog::CheckWritable(config.metrics.jsonl);
    CheckWritableFolder(config.metrics.tensorboard, "TensorBoard files", "metrics.tensorboard");
    CheckWritableFolder(config.metrics.trace_dir, "timelines", "metrics.trace_dir");
  });
  if (!config.checkpoint.dir.empty()) {
    RefuseForGood<checkpoint::CheckpointError>(
        [&] { checkpoint::CheckWritable(config.checkpoint.dir); });
  }
}

void LookAt(const std::string& path, Place place, const std::string& what, const std::string& key) {
  const int error = path.empty() ? 0 : WhyNotWritable(path, place);
  if (error != 0) {
    throw MetricsError("cannot write " + what + " " + path + ": " + std::strerror(error) +
                           "; choose another " + key,
                       error);
  }
}

/// The same, as far as that can be told without changing anything: what is not there yet is not
/// made.
void LookAtOutputs(const TrainConfig& config) {
  const TrainConfig::Metrics& metrics = config.metrics;
  RefuseForGood<MetricsError>([&] {
    LookAt(metrics.jsonl, Place::kFile, "the metrics file", "metrics.jsonl");
    if (std::error_code unknown; std::filesystem::exists(metrics.jsonl, unknown)) {
      MetricsLog::CheckWritable(metrics.jsonl);  // whether it is one
    }
    LookAt(metrics.tensorboard, Place::kFolder, "TensorBoard files in", "metrics.tensorboard");
    LookAt(metrics.trace_dir, Place::kFolder, "timelines in", "metrics.trace_dir");
    LookAt(config.checkpoint.dir, Place::kFolder, "checkpoints in", "checkpoint.dir");
  });
}

}  // namespace

void CheckBytes(const ModelConfig& model, const std::string& source) {
  if (model.vocab_size < kByteTokens) {
    throw ConfigError(source + ": vocab_size = " + std::to_string(model.vocab_size) +
                      ": expected at least 256 for data.tokenizer \"bytes\"");
  }
}

void CheckModel(const TrainConfig& config, const ModelConfig& model, const std::string& source) {
  CheckBytes(model, source);
  CheckPositions(config, model);
}

RunInputs ReadInputs(const Json& resolved, const WorkerEnvironment& environment, Outputs outputs) {
  RunInputs inputs{resolved, ParseConfig(resolved), {}, {}, nullptr, nullptr};
  const TrainConfig& config = inputs.config;
  const std::filesystem::path model_file = ModelConfigPath(config.model.config);
  inputs.description = {resolved, ReadStrictJsonFile(model_file), FolderOf(model_file)};
  const Json& model_config = inputs.description.model_config;
  inputs.model = ParseModelConfig(model_config, model_file.string());
  CheckDescribable(model_config, model_file.string());
  CheckFitsModel(config, inputs.model, environment.world_size);
  if (config.train.eval_every > 0 && config.data.valid.empty()) {
    throw ConfigError(
        "configuration: data.valid = []: expected at least one path, because "
        "train.eval_every is not 0");
  }
  if (environment.rank == 0) {
    if (outputs == Outputs::kMade) {
      CheckOutputs(config);
    } else {
      LookAtOutputs(config);
    }
    for (const std::string& warning : inputs.model.warnings) {
      std::fprintf(stderr, "warning: %s: %s\n", config.model.config.c_str(), warning.c_str());
    }
    if (config.lora.is_on() && config.model.weights == "none") {
      std::fputs(
          "warning: lora.rank is set and model.weights is none: the base is random weights\n",
          stderr);
    }
  }
  inputs.train = OpenAlike([&] {
    return std::make_shared<const TrainData>(
        OpenTrainData(config, inputs.model, environment.world_size));
  });
  if (config.train.eval_every > 0) {
    inputs.valid = OpenAlike([&] {
      return std::make_shared<const Windows>(
          OpenWindows("data.valid", config.data.valid, config, inputs.model));
    });
    RequireTokenizerOf(*inputs.train, inputs.valid->stream().facts());
  }
  WarnOnce(environment, CheckTokenizerOfWeights(config, *inputs.train));
  return inputs;
}

}  // namespace fsdprun::worker
