#include "fsdpctl/ckpt/export.h"

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "formats/checkpoint/file_system.h"
#include "formats/hf/model_config.h"
#include "formats/safetensors/safetensors_writer.h"
#include "formats/tensors/cast.h"
#include "formats/tensors/open_tensors.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/adapters.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/export_files.h"
#include "fsdpctl/ckpt/model_description.h"
#include "fsdpctl/ckpt/model_weights.h"

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
constexpr char kAdapterFile[] = "adapter_model.safetensors";
constexpr char kAdapterConfigFile[] = "adapter_config.json";
constexpr size_t kTokenizerBytesMax = size_t{256} << 20;

/// A model that is exported.
struct ExportedModel {
  ModelDescription description;
  std::vector<ExportedTensor> tensors;
  Json config;
};

ModelDescription DescribeModel(const CkptOptions& options, const TensorSource& source) {
  if (!options.config_file.empty()) {
    return DescriptionByFile(options.config_file);
  }
  std::optional<ModelDescription> found = FindDescription(source, options.operands[0]);
  if (!found) {
    throw Error("cannot export " + options.operands[0] +
                ": it does not say which model it is of; name the model's config.json with "
                "--config FILE");
  }
  return *std::move(found);
}

std::vector<ExportedTensor> WithDtypes(const WeightNameMap& weights, const CkptOptions& options,
                                       const TensorSource& source) {
  std::vector<ExportedTensor> tensors;
  for (const auto& [name, key] : weights) {
    const std::string& stored = source.tensors().at(key).dtype;
    const bool casts = !options.dtype.empty() && IsCastable(stored);
    tensors.push_back({name, key, casts ? options.dtype : stored});
  }
  if (tensors.empty()) {
    throw Error("cannot export " + options.operands[0] + ": it has no weights of a model");
  }
  return tensors;
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
  report.json["warning"] = nullptr;
  return report;
}

void Warn(const std::string& text, Report& report) {
  Json& warning = report.json["warning"];
  warning = (warning.is_null() ? std::string() : warning.get<std::string>() + "; ") + text;
  report.text += Printable(text) + "\n";
}

/// Says where the tokenizer is from, or that there is none.
void ReportTokenizer(const ModelDescription& model, const std::string& from, bool is_found,
                     Report& report) {
  report.json["tokenizer_dir"] = is_found ? Json(from) : Json();
  if (is_found) {
    report.text += "tokenizer from " + Printable(from) + "\n";
    return;
  }
  std::string text =
      "no files of a tokenizer were found: AutoTokenizer will not load the result; name their "
      "folder with --tokenizer-dir";
  if (!model.relative_folder.empty()) {
    text += "; the checkpoint names " + model.relative_folder + ", seen from where its job ran";
  }
  Warn(text, report);
}

ExportedModel ChooseModel(const CkptOptions& options, const ModelDescription& description,
                          TensorSource& source, Report& report) {
  const std::string& path = options.operands[0];
  ExportedModel model{description, {}, {}};
  const ModelDescription& described = model.description;
  ModelWeights chosen = WeightsOfModel(source, path, described.config, described.source);
  if (!chosen.unchecked.empty()) {
    Warn("the weights were not compared with the configuration, which is not known here: " +
             chosen.unchecked,
         report);
    if (described.config.is_object() && TiesEmbeddings(described.config)) {
      for (const char* embedding : kEmbeddings) {
        DropTiedHead(source, path, kHead, embedding, chosen.weights);
      }
    }
  }
  model.tensors = WithDtypes(chosen.weights, options, source);
  model.config = CompleteModelConfig(described.config, ModelDtype(model.tensors), described.source);
  return model;
}

Report ExportHuggingFace(const CkptOptions& options, const ModelDescription& description,
                         TensorSource& source) {
  Report notes;
  const ExportedModel model = ChooseModel(options, description, source, notes);
  const int64_t bytes = ExportedBytes(source, model.tensors);
  OutputFolder folder(options.operands[1], bytes,
                      options.force ? Existing::kReplace : Existing::kRefuse);
  std::vector<std::string> files =
      WriteModelFiles(source, model.tensors, options.shard_bytes_max, folder);
  const Json generation = model.description.generation.value_or(GenerationConfig(model.config));
  WriteOutput(folder.Place("config.json"), model.config.dump(2) + "\n", Existing::kRefuse);
  WriteOutput(folder.Place("generation_config.json"), generation.dump(2) + "\n", Existing::kRefuse);
  files.insert(files.end(), {"config.json", "generation_config.json"});
  const std::string& from =
      options.tokenizer_dir.empty() ? model.description.folder : options.tokenizer_dir;
  const std::vector<std::string> copied =
      from.empty() ? std::vector<std::string>() : CopyTokenizer(from, folder);
  if (copied.empty() && !options.tokenizer_dir.empty()) {
    throw Error("cannot copy the tokenizer: " + options.tokenizer_dir +
                " has no tokenizer.json nor another file of one; correct --tokenizer-dir");
  }
  files.insert(files.end(), copied.begin(), copied.end());
  folder.Publish(IsModelFileName);
  Report report = Summarize(options, model.tensors.size(), bytes, std::move(files));
  report.json["warning"] = notes.json.value("warning", Json());
  report.text += notes.text;
  ReportTokenizer(model.description, from, !copied.empty(), report);
  return report;
}

Report ExportTorch(const CkptOptions& options, TensorSource& source) {
  const std::vector<ExportedTensor> tensors = WithDtypes(source.Weights(), options, source);
  WriteTorch(source, tensors, options.operands[1],
             options.force ? Existing::kReplace : Existing::kRefuse);
  return Summarize(options, tensors.size(), ExportedBytes(source, tensors), {});
}

/// A folder for PEFT.
Report ExportAdapter(const CkptOptions& options, const AdapterDescription& adapters,
                     const ModelDescription& description, TensorSource& source) {
  std::vector<ExportedTensor> tensors = AdapterTensors(adapters, description, source);
  for (ExportedTensor& tensor : tensors) {
    tensor.dtype = options.dtype.empty() ? tensor.dtype : options.dtype;
  }
  const int64_t bytes = ExportedBytes(source, tensors);
  OutputFolder folder(options.operands[1], bytes,
                      options.force ? Existing::kReplace : Existing::kRefuse);
  WriteSafetensors(source, tensors, folder.Place(kAdapterFile));
  const std::string& base = options.base.empty() ? adapters.base : options.base;
  WriteOutput(
      folder.Place(kAdapterConfigFile),
      AdapterConfig(adapters.lora, ParseModelConfig(description.config, description.source), base),
      Existing::kRefuse);
  folder.Publish([](const std::string& name) { return name.starts_with("adapter_model."); });
  return Summarize(options, tensors.size(), bytes, {kAdapterFile, kAdapterConfigFile});
}

/// What only adapters have.
void RequireAdapters(const CkptOptions& options) {
  const char* option = options.format == ExportFormat::kAdapter ? "--format adapter"
                       : options.base.empty()                   ? nullptr
                                                                : "--base";
  if (option != nullptr) {
    throw Error("cannot export " + options.operands[0] + " with " + option +
                ": it has no adapters, which a training with lora.rank has");
  }
}

}  // namespace

Report ExportCheckpoint(const CkptOptions& options) {
  const std::unique_ptr<TensorSource> source = OpenTensors(options.operands[0]);
  const std::optional<AdapterDescription> adapters = FindAdapters(*source, options.operands[0]);
  if (!adapters) {
    RequireAdapters(options);
  }
  if (!adapters && options.format == ExportFormat::kTorchFile) {
    return ExportTorch(options, *source);
  }
  const ModelDescription description = DescribeModel(options, *source);
  if (!adapters) {
    return ExportHuggingFace(options, description, *source);
  }
  if (options.format == ExportFormat::kAdapter) {
    return ExportAdapter(options, *adapters, description, *source);
  }
  const MergedModel model = MergeWithBase(options, *adapters, description, *source);
  return options.format == ExportFormat::kHuggingFace
             ? ExportHuggingFace(options, description, *model.merged)
             : ExportTorch(options, *model.merged);
}

}  // namespace fsdprun::ckpt
