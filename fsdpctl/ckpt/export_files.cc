#include "fsdpctl/ckpt/export_files.h"

#include <algorithm>

#include "formats/safetensors/safetensors_writer.h"
#include "formats/tensors/cast.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/dtype_names.h"
#include "formats/torch_file/torch_file_writer.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun::ckpt {
namespace {

SafetensorsItem ItemOf(const TensorSource& source, const ExportedTensor& tensor) {
  const DtypeNames* dtype = FindTorchDtype(tensor.dtype);
  if (dtype == nullptr) {
    throw fsdp::archive::Error("cannot write " + tensor.name + ": safetensors has no dtype " +
                               tensor.dtype);
  }
  return {tensor.name, std::string(dtype->safetensors), source.tensors().at(tensor.source).shape};
}

}  // namespace

void StreamTensor(TensorSource& source, const ExportedTensor& tensor, const UsePiece& use) {
  const TensorFacts& facts = source.tensors().at(tensor.source);
  const int64_t from_bytes = ElementBytes(facts.dtype, tensor.source);
  const int64_t to_bytes = ElementBytes(tensor.dtype, tensor.name);
  const int64_t total = ElementCount(facts, tensor.source);
  const int64_t piece = std::min(total, PieceElements(std::max(from_bytes, to_bytes)));
  std::vector<char> stored(static_cast<size_t>(piece * from_bytes));
  std::vector<char> cast(facts.dtype == tensor.dtype ? 0 : static_cast<size_t>(piece * to_bytes));
  for (int64_t begin = 0; begin < total; begin += piece) {
    const int64_t count = std::min(piece, total - begin);
    source.Read(tensor.source, begin, count, stored.data());
    if (cast.empty()) {
      use(stored.data(), count * from_bytes);
      continue;
    }
    CastElements(facts.dtype, stored.data(), tensor.dtype, cast.data(), count);
    use(cast.data(), count * to_bytes);
  }
}

int64_t ExportedBytes(const TensorSource& source, const std::vector<ExportedTensor>& tensors) {
  int64_t bytes = 0;
  for (const ExportedTensor& tensor : tensors) {
    AddTensorBytes(source.tensors().at(tensor.source), tensor.dtype, tensor.name, bytes);
  }
  return bytes;
}

void WriteSafetensors(TensorSource& source, const std::vector<ExportedTensor>& tensors,
                      const std::string& path) {
  std::vector<SafetensorsItem> items;
  items.reserve(tensors.size());
  for (const ExportedTensor& tensor : tensors) {
    items.push_back(ItemOf(source, tensor));
  }
  const SafetensorsLayout layout = LayOutSafetensors(items);
  OutputFile file(path, layout.file_bytes, Existing::kRefuse);
  file.Write(0, layout.head);
  for (size_t i = 0; i < tensors.size(); ++i) {
    int64_t place = layout.begins[i];
    StreamTensor(source, tensors[i], [&](const void* data, int64_t byte_count) {
      file.Write(place, data, byte_count);
      place += byte_count;
    });
  }
  file.Publish();
}

std::vector<std::string> WriteModelFiles(TensorSource& source,
                                         const std::vector<ExportedTensor>& tensors,
                                         int64_t shard_bytes_max, const OutputFolder& folder) {
  std::vector<SafetensorsItem> items;
  items.reserve(tensors.size());
  for (const ExportedTensor& tensor : tensors) {
    items.push_back(ItemOf(source, tensor));
  }
  const std::vector<std::vector<size_t>> shards = DivideIntoShards(items, shard_bytes_max);
  std::vector<std::string> names;
  for (size_t shard = 0; shard < shards.size(); ++shard) {
    std::vector<ExportedTensor> of_shard;
    for (const size_t i : shards[shard]) {
      of_shard.push_back(tensors[i]);
    }
    names.push_back(ShardFileName(shard, shards.size()));
    WriteSafetensors(source, of_shard, folder.Place(names.back()));
  }
  if (shards.size() > 1) {
    names.emplace_back("model.safetensors.index.json");
    WriteOutput(folder.Place(names.back()), ShardIndex(items, shards), Existing::kRefuse);
  }
  return names;
}

void WriteTorch(TensorSource& source, const std::vector<ExportedTensor>& tensors,
                const std::string& path, Existing existing) {
  std::vector<TorchFileTensor> items;
  items.reserve(tensors.size());
  for (const ExportedTensor& tensor : tensors) {
    items.push_back({tensor.name, tensor.dtype, source.tensors().at(tensor.source).shape});
  }
  // The layout is of a possible size then.
  CheckFree(path, ExportedBytes(source, tensors));
  const TorchFileLayout layout = LayOutTorchFile(items);
  OutputFile file(path, layout.file_bytes, existing);
  WriteTorchFile(
      layout,
      [&](size_t index, const WritePiece& write) { StreamTensor(source, tensors[index], write); },
      file);
  file.Publish();
}

}  // namespace fsdprun::ckpt
