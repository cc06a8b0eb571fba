#include "fsdpctl/ckpt/export.h"

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "formats/checkpoint/file_system.h"
#include "formats/hf/model_config.h"
#include "formats/safetensors/safetensors_writer.h"
#include "formats/tensors/cast.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/open_tensors.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/export_files.h"
#include "fsdpctl/ckpt/inspect.h"

namespace fsdprun::ckpt {
namespace {

using fsdp::archive::Error;

constexpr char kHead[] = "lm_head.weight";
constexpr const char* kEmbeddings[] = {"model.embed_tokens.weight", "transformer.wte.weight"};
constexpr const char* kTokenizerFiles[] = {"tokenizer.json",
                                           "tokenizer_config.json",
                                           "special_tokens_map.json",
                                           "added_tokens.json",
                                           "vocab.json",
                                           "merges.txt",
                                           "tokenizer.model",
                                           "chat_template.jinja"};
constexpr size_t kTokenizerBytesMax = size_t{256} << 20;

/// The model's configuration and the folder that it came from, as far as known.
struct ModelDescription {
  Json config;
  std::string source;  // for errors
  std::string folder;  // empty: unknown
};

std::string FolderOfConfig(const std::string& path) {
  return std::filesystem::is_directory(path) ? path : FolderOf(path);
}

/// What fsdp-train has put into the checkpoint.
std::optional<ModelDescription> DescriptionIn(const CheckpointTensors& source,
                                              const std::string& path) {
  const std::optional<Json> state = PlainObject(source.opened(), "train.state");
  if (!state || !state->is_object() || !state->contains("model_config")) {
    return std::nullopt;
  }
  ModelDescription found{state->at("model_config"), path + ", train.state.model_config", ""};
  const Json::json_pointer file("/config/model/config");
  if (state->contains(file) && state->at(file).is_string()) {
    found.folder = FolderOfConfig(state->at(file).get<std::string>());
  }
  return found;
}

ModelDescription DescribeModel(const CkptOptions& options, const TensorSource& source) {
  const std::string& path = options.operands[0];
  std::string file = options.config_file;
  if (const auto* dcp = dynamic_cast<const CheckpointTensors*>(&source);
      dcp != nullptr && file.empty()) {
    if (std::optional<ModelDescription> found = DescriptionIn(*dcp, path)) {
      return *std::move(found);
    }
  }
  if (file.empty()) {
    file = path + "/config.json";
    if (!checkpoint::FileExists(file)) {
      throw Error("cannot export " + path +
                  ": it does not say which model it is of; name the model's config.json with "
                  "--config FILE");
    }
  }
  return {ReadStrictJsonFile(file), file, FolderOfConfig(file)};
}

std::vector<ExportedTensor> ChooseTensors(const CkptOptions& options, const TensorSource& source) {
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, key] : source.Weights()) {
    const std::string& stored = source.tensors().at(key).dtype;
    const bool casts = !options.dtype.empty() && IsCastable(stored);
    tensors.push_back({name, key, casts ? options.dtype : stored});
  }
  if (tensors.empty()) {
    throw Error("cannot export " + options.operands[0] + ": it has no weights of a model");
  }
  return tensors;
}

/// Leaves out a head that is the embedding: from files with both, transformers 4 and 5 make
/// different models unless they are equal.
void DropTiedHead(TensorSource& source, const std::string& path,
                  std::vector<ExportedTensor>& tensors) {
  const auto find = [&](const std::string& name) {
    return std::find_if(tensors.begin(), tensors.end(),
                        [&](const ExportedTensor& tensor) { return tensor.name == name; });
  };
  const auto head = find(kHead);
  for (const char* name : kEmbeddings) {
    const auto embedding = find(name);
    if (head == tensors.end() || embedding == tensors.end()) {
      continue;
    }
    const TensorFacts& a = source.tensors().at(head->source);
    const TensorFacts& b = source.tensors().at(embedding->source);
    if (a.dtype != b.dtype || a.shape != b.shape ||
        CompareTensors(source, head->source, source, embedding->source).different > 0) {
      throw Error("cannot export " + path + ": " + kHead + " differs from " + name +
                  ", but the model's configuration says tie_word_embeddings; give one that does "
                  "not with --config FILE");
    }
    tensors.erase(head);
    return;
  }
}

/// The dtype that config.json names: that of the first weights with a fraction.
std::string ModelDtype(const std::vector<ExportedTensor>& tensors) {
  for (const ExportedTensor& tensor : tensors) {
    if (IsCastable(tensor.dtype)) {
      return tensor.dtype;
    }
  }
  return "float32";
}

/// Copies what is there; returns the names.
std::vector<std::string> CopyTokenizer(const std::string& from, const OutputFolder& folder) {
  std::vector<std::string> names;
  for (const char* name : kTokenizerFiles) {
    const std::string path = from + "/" + name;
    if (checkpoint::FileExists(path)) {
      WriteOutput(folder.Place(name), ReadSmallFile(path, kTokenizerBytesMax), Existing::kRefuse);
      names.emplace_back(name);
    }
  }
  return names;
}

Report Summarize(const CkptOptions& options, size_t tensors, int64_t bytes,
                 std::vector<std::string> files) {
  Report report;
  report.json = {{"output", options.operands[1]}, {"tensors", tensors}, {"bytes", bytes}};
  report.text = Printable(options.operands[1]) + ": " + std::to_string(tensors) + " tensors, " +
                BytesText(bytes) +
                (files.empty() ? std::string() : " in " + absl::StrJoin(files, ", ")) + "\n";
  report.json["files"] = std::move(files);
  return report;
}

void AddTokenizer(const CkptOptions& options, const ModelDescription& model,
                  const OutputFolder& folder, std::vector<std::string>& files,
                  std::string& warning) {
  const std::string& from = options.tokenizer_dir.empty() ? model.folder : options.tokenizer_dir;
  const std::vector<std::string> copied =
      from.empty() ? std::vector<std::string>() : CopyTokenizer(from, folder);
  if (copied.empty() && !options.tokenizer_dir.empty()) {
    throw Error("cannot copy the tokenizer: " + options.tokenizer_dir +
                " has no tokenizer.json nor another file of one; correct --tokenizer-dir");
  }
  if (copied.empty()) {
    warning =
        "no files of a tokenizer were found: AutoTokenizer will not load the result; name their "
        "folder with --tokenizer-dir\n";
  }
  files.insert(files.end(), copied.begin(), copied.end());
}

Report ExportHuggingFace(const CkptOptions& options, TensorSource& source,
                         std::vector<ExportedTensor> tensors) {
  const ModelDescription model = DescribeModel(options, source);
  const Json config = CompleteModelConfig(model.config, ModelDtype(tensors), model.source);
  if (TiesEmbeddings(config)) {
    DropTiedHead(source, options.operands[0], tensors);
  }
  const int64_t bytes = ExportedBytes(source, tensors);
  const Existing existing = options.force ? Existing::kReplace : Existing::kRefuse;
  OutputFolder folder(options.operands[1], bytes, existing);
  std::vector<std::string> files =
      WriteModelFiles(source, tensors, options.shard_bytes_max, folder);
  WriteOutput(folder.Place("config.json"), config.dump(2) + "\n", Existing::kRefuse);
  WriteOutput(folder.Place("generation_config.json"), GenerationConfig(config).dump(2) + "\n",
              Existing::kRefuse);
  files.insert(files.end(), {"config.json", "generation_config.json"});
  std::string warning;
  AddTokenizer(options, model, folder, files, warning);
  folder.Publish(IsModelFileName);
  Report report = Summarize(options, tensors.size(), bytes, std::move(files));
  report.text += warning;
  report.json["warning"] = warning.empty() ? Json() : Json(warning);
  return report;
}

}  // namespace

Report ExportCheckpoint(const CkptOptions& options) {
  const std::unique_ptr<TensorSource> source = OpenTensors(options.operands[0]);
  std::vector<ExportedTensor> tensors = ChooseTensors(options, *source);
  if (options.format == ExportFormat::kHuggingFace) {
    return ExportHuggingFace(options, *source, std::move(tensors));
  }
  WriteTorch(*source, tensors, options.operands[1],
             options.force ? Existing::kReplace : Existing::kRefuse);
  return Summarize(options, tensors.size(), ExportedBytes(*source, tensors), {});
}

}  // namespace fsdprun::ckpt
