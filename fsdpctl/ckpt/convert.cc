#include "fsdpctl/ckpt/convert.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/torch_blob.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/open_tensors.h"
#include "formats/tensors/write_checkpoint.h"
#include "fsdp_runtime/archive/error.h"
#include "fsdpctl/ckpt/amounts.h"
#include "fsdpctl/ckpt/rename_map.h"

namespace fsdprun::ckpt {
namespace {

constexpr size_t kMapBytesMax = size_t{16} << 20;
constexpr int64_t kObjectBytesMax = int64_t{1} << 30;

Report Write(TensorSource& source, const CheckpointToWrite& output, const CkptOptions& options) {
  WriteCheckpoint(source, output, options.operands[1],
                  options.force ? Existing::kReplace : Existing::kRefuse);
  Report report;
  report.json = {{"output", options.operands[1]},
                 {"tensors", output.tensors.size()},
                 {"objects", output.objects.size()}};
  report.text = Printable(options.operands[1]) + ": " + std::to_string(output.tensors.size()) +
                " tensors, " + std::to_string(output.objects.size()) + " objects\n";
  return report;
}

/// The bytes of an object, compared with nothing: they are copied as they are.
std::string BlobBytes(const std::string& path, const std::string& key,
                      const checkpoint::BlobLocation& blob) {
  if (blob.length > kObjectBytesMax) {
    throw fsdp::archive::Error("cannot copy " + key + " of " + path + ": " +
                               std::to_string(blob.length) + " bytes are over the bound of " +
                               std::to_string(kObjectBytesMax));
  }
  const checkpoint::InputFile file(path + "/" + blob.file);
  std::string bytes(static_cast<size_t>(blob.length), '\0');
  file.Read(blob.offset, bytes.data(), blob.length);
  return bytes;
}

void AddObjects(const CheckpointTensors& source, const RenameMap& map, CheckpointToWrite& output) {
  const checkpoint::OpenedCheckpoint& opened = source.opened();
  for (const auto& [key, blob] : opened.metadata.objects) {
    if (const std::optional<std::string> name = map.Rename(key)) {
      output.objects.push_back({*name, BlobBytes(opened.path, key, blob)});
    }
  }
  if (opened.manifest) {
    output.step = opened.manifest->step;
    output.tokens = opened.manifest->tokens;
    output.run = opened.manifest->run;
  }
}

}  // namespace

Report ImportModel(const CkptOptions& options) {
  const std::string& path = options.operands[0];
  if (LayoutOf(path) == TensorLayout::kDcp) {
    throw fsdp::archive::Error("cannot import " + path +
                               ": it is a DCP checkpoint already; fsdpctl ckpt convert renames "
                               "its keys");
  }
  const std::unique_ptr<TensorSource> source = OpenTensors(path);
  CheckpointToWrite output;
  for (const auto& [name, facts] : source->tensors()) {
    output.tensors.push_back({"model." + name, name});
  }
  const std::string config = path + "/config.json";
  if (checkpoint::FileExists(config)) {
    // What fsdpctl ckpt export looks for.
    const nlohmann::json state = {{"model_config", nlohmann::json(ReadStrictJsonFile(config))}};
    output.objects.push_back({"train.state", checkpoint::PackObject(state)});
  }
  return Write(*source, output, options);
}

Report ConvertCheckpoint(const CkptOptions& options) {
  const RenameMap map(ReadSmallFile(options.map_file, kMapBytesMax), options.map_file);
  const std::unique_ptr<TensorSource> source = OpenTensors(options.operands[0]);
  CheckpointToWrite output;
  for (const auto& [key, facts] : source->tensors()) {
    if (const std::optional<std::string> name = map.Rename(key)) {
      output.tensors.push_back({*name, key});
    }
  }
  if (const auto* dcp = dynamic_cast<const CheckpointTensors*>(source.get())) {
    AddObjects(*dcp, map, output);
  }
  return Write(*source, output, options);
}

}  // namespace fsdprun::ckpt
