#include "fsdpctl/ckpt/convert.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/files/output_folder.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/write_checkpoint.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/accelerate_layout.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/conversion.h"
#include "fsdpctl/ckpt/model_description.h"
#include "fsdpctl/ckpt/model_weights.h"
#include "fsdpctl/ckpt/rename_map.h"
#include "fsdpctl/ckpt/stored_objects.h"
#include "fsdpctl/ckpt/titan_layout.h"

namespace fsdprun::ckpt {
namespace {

using Path = std::vector<checkpoint::PathPart>;

constexpr size_t kMapBytesMax = size_t{16} << 20;

/// Several checkpoints in one folder, which appears when they are all there.
void WriteFolders(const Conversion& conversion, const std::string& path, Existing existing) {
  std::optional<OutputFolder> whole;
  const bool is_new = !checkpoint::DirectoryExists(path);
  if (is_new || existing == Existing::kRefuse) {
    whole.emplace(path, 0, existing);
  }
  for (const ConvertedFolder& folder : conversion.folders) {
    WriteCheckpoint(conversion.source(), folder.checkpoint,
                    whole ? whole->Place(folder.name) : path + "/" + folder.name, existing);
  }
  if (whole) {
    whole->Publish([](const std::string& /*name*/) { return false; });
  }
}

Report Write(const Conversion& conversion, const CkptOptions& options) {
  const std::string& path = options.operands[1];
  const Existing existing = options.force ? Existing::kReplace : Existing::kRefuse;
  if (conversion.folders.front().name.empty()) {
    WriteCheckpoint(conversion.source(), conversion.folders.front().checkpoint, path, existing);
  } else {
    WriteFolders(conversion, path, existing);
  }
  size_t tensors = 0;
  size_t objects = 0;
  for (const ConvertedFolder& folder : conversion.folders) {
    tensors += folder.checkpoint.tensors.size();
    objects += folder.checkpoint.objects.size();
  }
  Report report;
  report.json = {{"output", path}, {"tensors", tensors}, {"objects", objects}};
  report.json["note"] = conversion.note.empty() ? Json() : Json(conversion.note);
  report.text = Printable(path) + ": " + std::to_string(tensors) + " tensors, " +
                std::to_string(objects) + " objects\n" + conversion.note;
  return report;
}

/// Where a key is in the nested state dict: at its top level if nothing is said.
Path PathIn(const checkpoint::DcpMetadata& metadata, const std::string& key) {
  const auto path = metadata.paths.find(key);
  return path == metadata.paths.end() ? Path{key} : path->second;
}

void AddObjects(const CheckpointTensors& source, const RenameMap& map, CheckpointToWrite& output) {
  const checkpoint::OpenedCheckpoint& opened = source.opened();
  // A copy gets new checksums: what is damaged must not be copied.
  StoredObjects objects(opened);
  for (const auto& [key, blob] : opened.metadata.objects) {
    if (const std::optional<std::string> name = map.Rename(key)) {
      output.objects.push_back(
          {*name, objects.Read(key), PathAfterRename(key, PathIn(opened.metadata, key), *name)});
    }
  }
}

Conversion ConvertByFile(const CkptOptions& options) {
  const RenameMap map(ReadSmallFile(options.map_file, kMapBytesMax), options.map_file);
  std::unique_ptr<TensorSource> source = OpenTensors(options.operands[0]);
  const auto* dcp = dynamic_cast<const CheckpointTensors*>(source.get());
  CheckpointToWrite output;
  for (const auto& [key, facts] : source->tensors()) {
    if (const std::optional<std::string> name = map.Rename(key)) {
      const Path path = dcp == nullptr ? Path{key} : PathIn(dcp->opened().metadata, key);
      output.tensors.push_back({*name, key, PathAfterRename(key, path, *name)});
    }
  }
  if (dcp != nullptr) {
    AddObjects(*dcp, map, output);
  }
  TakeStep(*source, output);
  Conversion conversion;
  conversion.sources.push_back(std::move(source));
  conversion.folders.push_back({"", std::move(output)});
  return conversion;
}

Conversion Convert(const CkptOptions& options) {
  const std::string& map = options.map_file;
  if (map == "torchtitan") {
    return ConvertToTitan(options, TitanStyle::kNow);
  }
  if (map == "torchtitan-0.2") {
    return ConvertToTitan(options, TitanStyle::kVersion02);
  }
  if (map == "from-torchtitan") {
    return ConvertFromTitan(options);
  }
  if (map == "accelerate") {
    return ConvertToAccelerate(options);
  }
  return map == "from-accelerate" ? ConvertFromAccelerate(options) : ConvertByFile(options);
}

}  // namespace

Report ImportModel(const CkptOptions& options) {
  const std::string& path = options.operands[0];
  if (LayoutOf(path) == TensorLayout::kDcp) {
    throw fsdp::archive::Error("cannot import " + path +
                               ": it is a DCP checkpoint already; fsdpctl ckpt convert renames "
                               "its keys");
  }
  std::unique_ptr<TensorSource> source = OpenTensors(path);
  Conversion conversion;
  CheckpointToWrite output;
  WeightNameMap weights = source->Weights();
  if (const std::optional<ModelDescription> model = FindDescription(*source, path)) {
    ModelWeights chosen = WeightsOfModel(*source, path, model->config, model->source);
    weights = std::move(chosen.weights);
    if (!chosen.unchecked.empty()) {
      conversion.note =
          "the weights were not compared with the configuration, which is not known here: " +
          Printable(chosen.unchecked) + "\n";
    }
    output.objects.push_back(
        {"train.state", checkpoint::PackObject(nlohmann::json(StateOfModel(*model))), {}});
  } else {
    conversion.note =
        "there is no config.json beside the weights: the checkpoint does not say which model it is "
        "of\n";
  }
  for (const auto& [name, key] : weights) {
    output.tensors.push_back({"model." + name, key, {"model", name}});
  }
  conversion.sources.push_back(std::move(source));
  conversion.folders.push_back({"", std::move(output)});
  return Write(conversion, options);
}

Report ConvertCheckpoint(const CkptOptions& options) { return Write(Convert(options), options); }

}  // namespace fsdprun::ckpt
