#include "worker/checkpoint/dcp_metadata.h"
#include "worker/checkpoint/pickle_writer.h"

namespace fsdprun::worker::checkpoint {
namespace {

constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";

void EmitObject(PickleWriter& out, std::string_view module, std::string_view name) {
  out.Global(module, name);
  out.EmptyTuple();
  out.NewObject();
}

void EmitSize(PickleWriter& out, const std::vector<int64_t>& sizes) {
  out.Global("torch", "Size");
  out.Mark();
  out.Mark();
  for (const int64_t size : sizes) {
    out.Int(size);
  }
  out.Tuple();
  out.Tuple();
  out.Reduce();
}

void EmitProperties(PickleWriter& out, const std::string& dtype) {
  EmitObject(out, kMetadataModule, "TensorProperties");
  out.Mark();
  out.Global("torch", dtype);
  out.Global("torch.serialization", "_get_layout");
  out.Mark();
  out.String("torch.strided");
  out.Tuple();
  out.Reduce();
  out.Bool(false);  // requires_grad
  out.Global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  out.Mark();
  out.Int(0);  // TORCH_CONTIGUOUS_FORMAT
  out.Tuple();
  out.Reduce();
  out.Bool(false);  // pin_memory
  out.Tuple();
  out.Build();
}

void EmitTensor(PickleWriter& out, const StoredTensor& tensor) {
  EmitObject(out, kMetadataModule, "TensorStorageMetadata");
  out.EmptyDict();
  out.Mark();
  out.String("properties");
  EmitProperties(out, tensor.dtype);
  out.String("size");
  EmitSize(out, tensor.shape);
  out.String("chunks");
  out.EmptyList();
  out.Mark();
  for (const StoredChunk& chunk : tensor.chunks) {
    EmitObject(out, kMetadataModule, "ChunkStorageMetadata");
    out.EmptyDict();
    out.Mark();
    out.String("offsets");
    EmitSize(out, chunk.box.offsets);
    out.String("sizes");
    EmitSize(out, chunk.box.sizes);
    out.SetItems();
    out.Build();
  }
  out.Appends();
  out.SetItems();
  out.Build();
}

void EmitLocation(PickleWriter& out, const BlobLocation& blob) {
  EmitObject(out, kStorageModule, "_StorageInfo");
  out.EmptyDict();
  out.Mark();
  out.String("relative_path");
  out.String(blob.file);
  out.String("offset");
  out.Int(blob.offset);
  out.String("length");
  out.Int(blob.length);
  out.SetItems();
  out.Build();
}

/// `box` is null for an object, which has no place within a tensor.
void EmitIndex(PickleWriter& out, const std::string& key, const fsdp::plan::Box* box,
               size_t position) {
  EmitObject(out, kMetadataModule, "MetadataIndex");
  out.EmptyDict();
  out.Mark();
  out.String("fqn");
  out.String(key);
  out.String("index");
  if (box == nullptr) {
    out.None();
  } else {
    out.Int(static_cast<int64_t>(position));
    out.String("offset");
    EmitSize(out, box->offsets);
  }
  out.SetItems();
  out.Build();
}

void EmitPaths(PickleWriter& out, const DcpMetadata& metadata) {
  out.EmptyDict();
  out.Mark();
  for (const auto& [key, path] : metadata.paths) {
    out.String(key);
    out.Mark();
    for (const PathPart& part : path) {
      if (const auto* name = std::get_if<std::string>(&part)) {
        out.String(*name);
      } else {
        out.Int(std::get<int64_t>(part));
      }
    }
    out.Tuple();
  }
  out.SetItems();
}

void EmitStorage(PickleWriter& out, const DcpMetadata& metadata) {
  out.EmptyDict();
  out.Mark();
  for (const auto& [key, blob] : metadata.objects) {
    EmitIndex(out, key, nullptr, 0);
    EmitLocation(out, blob);
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    for (size_t i = 0; i < tensor.chunks.size(); ++i) {
      if (tensor.chunks[i].blob.file.empty()) {
        continue;  // an empty piece
      }
      EmitIndex(out, key, &tensor.chunks[i].box, i);
      EmitLocation(out, tensor.chunks[i].blob);
    }
  }
  out.SetItems();
}

}  // namespace

std::vector<PathPart> PathOfKey(std::string_view key) {
  constexpr std::string_view kOptimizerState = "optim.state.";
  const size_t last_dot = key.rfind('.');
  if (key.starts_with(kOptimizerState) && last_dot > kOptimizerState.size()) {
    const std::string_view fqn =
        key.substr(kOptimizerState.size(), last_dot - kOptimizerState.size());
    return {"optim", "state", std::string(fqn), std::string(key.substr(last_dot + 1))};
  }
  const size_t first_dot = key.find('.');
  if (first_dot == std::string_view::npos) {
    return {std::string(key)};
  }
  return {std::string(key.substr(0, first_dot)), std::string(key.substr(first_dot + 1))};
}

std::string EncodeDcpMetadata(const DcpMetadata& metadata) {
  PickleWriter out;
  EmitObject(out, kMetadataModule, "Metadata");
  out.EmptyDict();
  out.Mark();
  out.String("state_dict_metadata");
  out.EmptyDict();
  out.Mark();
  for (const auto& [key, blob] : metadata.objects) {
    out.String(key);
    EmitObject(out, kMetadataModule, "BytesStorageMetadata");
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    out.String(key);
    EmitTensor(out, tensor);
  }
  out.SetItems();
  out.String("planner_data");
  EmitPaths(out, metadata);
  out.String("storage_data");
  EmitStorage(out, metadata);
  // A StorageMeta would carry a pathlib object; DCP does without.
  out.String("storage_meta");
  out.None();
  out.String("version");
  out.String("1.0.0");
  out.SetItems();
  out.Build();
  return out.Finish();
}

}  // namespace fsdprun::worker::checkpoint
