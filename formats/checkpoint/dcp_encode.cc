#include "formats/checkpoint/dcp_metadata.h"
#include "fsdp_runtime/archive/pickle_writer.h"

namespace fsdprun::checkpoint {
namespace {

using fsdp::archive::PickleWriter;

constexpr std::string_view kStorageModule = "torch.distributed.checkpoint.filesystem";

void EmitObject(PickleWriter& out, std::string_view module, std::string_view name) {
  out.global(module, name);
  out.empty_tuple();
  out.new_object();
}

void EmitSize(PickleWriter& out, const std::vector<int64_t>& sizes) {
  out.global("torch", "Size");
  out.mark();
  out.mark();
  for (const int64_t size : sizes) {
    out.integer(size);
  }
  out.tuple();
  out.tuple();
  out.reduce();
}

void EmitProperties(PickleWriter& out, const std::string& dtype) {
  EmitObject(out, kMetadataModule, "TensorProperties");
  out.mark();
  out.global("torch", dtype);
  out.global("torch.serialization", "_get_layout");
  out.mark();
  out.string("torch.strided");
  out.tuple();
  out.reduce();
  out.boolean(false);  // requires_grad
  out.global(kMetadataModule, "_MEM_FORMAT_ENCODING");
  out.mark();
  out.integer(0);  // TORCH_CONTIGUOUS_FORMAT
  out.tuple();
  out.reduce();
  out.boolean(false);  // pin_memory
  out.tuple();
  out.build();
}

void EmitTensor(PickleWriter& out, const StoredTensor& tensor) {
  EmitObject(out, kMetadataModule, "TensorStorageMetadata");
  out.empty_dict();
  out.mark();
  out.string("properties");
  EmitProperties(out, tensor.dtype);
  out.string("size");
  EmitSize(out, tensor.shape);
  out.string("chunks");
  out.empty_list();
  out.mark();
  for (const StoredChunk& chunk : tensor.chunks) {
    EmitObject(out, kMetadataModule, "ChunkStorageMetadata");
    out.empty_dict();
    out.mark();
    out.string("offsets");
    EmitSize(out, chunk.box.offsets);
    out.string("sizes");
    EmitSize(out, chunk.box.sizes);
    out.set_items();
    out.build();
  }
  out.appends();
  out.set_items();
  out.build();
}

void EmitLocation(PickleWriter& out, const BlobLocation& blob) {
  EmitObject(out, kStorageModule, "_StorageInfo");
  out.empty_dict();
  out.mark();
  out.string("relative_path");
  out.string(blob.file);
  out.string("offset");
  out.integer(blob.offset);
  out.string("length");
  out.integer(blob.length);
  out.set_items();
  out.build();
}

/// `box` is null for an object, which has no place within a tensor.
void EmitIndex(PickleWriter& out, const std::string& key, const fsdp::plan::Box* box,
               size_t position) {
  EmitObject(out, kMetadataModule, "MetadataIndex");
  out.empty_dict();
  out.mark();
  out.string("fqn");
  out.string(key);
  out.string("index");
  if (box == nullptr) {
    out.none();
  } else {
    out.integer(static_cast<int64_t>(position));
    out.string("offset");
    EmitSize(out, box->offsets);
  }
  out.set_items();
  out.build();
}

void EmitPaths(PickleWriter& out, const DcpMetadata& metadata) {
  out.empty_dict();
  out.mark();
  for (const auto& [key, path] : metadata.paths) {
    out.string(key);
    out.mark();
    for (const PathPart& part : path) {
      if (const auto* name = std::get_if<std::string>(&part)) {
        out.string(*name);
      } else {
        out.integer(std::get<int64_t>(part));
      }
    }
    out.tuple();
  }
  out.set_items();
}

void EmitStorage(PickleWriter& out, const DcpMetadata& metadata) {
  out.empty_dict();
  out.mark();
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
  out.set_items();
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
  out.empty_dict();
  out.mark();
  out.string("state_dict_metadata");
  out.empty_dict();
  out.mark();
  for (const auto& [key, blob] : metadata.objects) {
    out.string(key);
    EmitObject(out, kMetadataModule, "BytesStorageMetadata");
  }
  for (const auto& [key, tensor] : metadata.tensors) {
    out.string(key);
    EmitTensor(out, tensor);
  }
  out.set_items();
  out.string("planner_data");
  EmitPaths(out, metadata);
  out.string("storage_data");
  EmitStorage(out, metadata);
  // A StorageMeta would carry a pathlib object; DCP does without.
  out.string("storage_meta");
  out.none();
  out.string("version");
  out.string("1.0.0");
  out.set_items();
  out.build();
  return out.finish();
}

}  // namespace fsdprun::checkpoint
