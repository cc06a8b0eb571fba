#include "formats/tensors/checkpoint_tensors.h"

#include <set>

#include "formats/tensors/dtype_names.h"
#include "formats/tensors/weight_keys.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun {

using fsdp::Box;

CheckpointTensors::CheckpointTensors(const std::string& path)
    : opened_(checkpoint::OpenCheckpoint(path, checkpoint::FilesThere::kCheck)),
      reader_(opened_, /*verify_blobs=*/true) {
  for (const auto& [key, tensor] : opened_.metadata.tensors) {
    TensorFacts& facts = tensors_[key];
    facts.dtype = tensor.dtype;
    facts.shape = tensor.shape;
    std::set<std::string> files;
    for (const checkpoint::StoredChunk& chunk : tensor.chunks) {
      if (!chunk.blob.file.empty()) {
        ++facts.pieces;
        files.insert(chunk.blob.file);
      }
    }
    facts.files.assign(files.begin(), files.end());
  }
}

std::map<std::string, std::string> CheckpointTensors::Weights() const {
  return WeightKeys(opened_.metadata);
}

void CheckpointTensors::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  const TensorFacts& facts = tensors_.at(name);
  const int64_t element_bytes = ElementBytes(facts.dtype, name);
  if (facts.shape.empty()) {
    reader_.ReadBox(name, fsdp::plan::whole_box(facts.shape), out);
    return;
  }
  auto* next = static_cast<char*>(out);
  for (const Box& box : fsdp::plan::flat_range_to_boxes(facts.shape, begin, begin + count)) {
    reader_.ReadBox(name, box, next);
    next += fsdp::plan::numel_of(box) * element_bytes;
  }
}

}  // namespace fsdprun
