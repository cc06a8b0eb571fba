#include "formats/tensors/open_tensors.h"

#include <filesystem>

#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/manifest.h"
#include "formats/checkpoint/step_list.h"
#include "formats/tensors/checkpoint_tensors.h"
#include "formats/tensors/safetensors_tensors.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {

TensorLayout LayoutOf(const std::string& path) {
  if (checkpoint::FileExists(path)) {
    if (std::filesystem::path(path).extension() == ".safetensors") {
      return TensorLayout::kSafetensors;
    }
    throw fsdp::archive::Error("cannot read " + path +
                               ": expected the folder of a checkpoint or of a model, or a file "
                               ".safetensors");
  }
  if (!checkpoint::DirectoryExists(path)) {
    throw fsdp::archive::Error("cannot read " + path + ": there is no such file or folder");
  }
  if (checkpoint::FileExists(path + "/" + checkpoint::kMetadataFile)) {
    return TensorLayout::kDcp;
  }
  if (checkpoint::FileExists(path + "/model.safetensors") ||
      checkpoint::FileExists(path + "/model.safetensors.index.json")) {
    return TensorLayout::kSafetensors;
  }
  if (ShardedSafetensors::IsOne(path)) {
    return TensorLayout::kShardedSafetensors;
  }
  for (const checkpoint::StepEntry& step : checkpoint::ListSteps(path)) {
    if (step.is_complete) {
      throw fsdp::archive::Error(path + " is a folder of checkpoints; name one of them, such as " +
                                 step.path);
    }
  }
  throw fsdp::archive::Error("cannot read " + path +
                             ": it has neither .metadata, nor model.safetensors, nor "
                             "model.safetensors.index.json, so it is no complete checkpoint");
}

std::unique_ptr<TensorSource> OpenTensors(const std::string& path) {
  switch (LayoutOf(path)) {
    case TensorLayout::kDcp:
      return std::make_unique<CheckpointTensors>(path);
    case TensorLayout::kSafetensors:
      return std::make_unique<SafetensorsTensors>(path);
    case TensorLayout::kShardedSafetensors:
      break;
  }
  return std::make_unique<ShardedSafetensors>(path);
}

const char* LayoutName(TensorLayout layout) {
  switch (layout) {
    case TensorLayout::kDcp:
      return "dcp";
    case TensorLayout::kSafetensors:
      return "safetensors";
    case TensorLayout::kShardedSafetensors:
      break;
  }
  return "dcp-safetensors";
}

}  // namespace fsdprun
