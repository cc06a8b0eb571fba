#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fsdprun {

/// A tensor that is to be written; `dtype` as the format spells it ("F32").
struct SafetensorsItem {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

/// Where everything of a file will lie: known before any element is, so that tensors are written
/// piece by piece, in any order, from wherever they are.
struct SafetensorsLayout {
  std::string head;             // the length and the header, padded to a multiple of 8 bytes
  std::vector<int64_t> begins;  // of each item's elements, in bytes from the start of the file
  int64_t file_bytes = 0;
};

/// Bytes of the elements. Errors: fsdp::archive::Error on an unknown dtype, on a negative size, on
/// more than 2^62 bits, on a tensor that ends within a byte.
int64_t SafetensorsBytes(const SafetensorsItem& item);

/// The widest elements come first, so that all are aligned. The header says that the file is
/// PyTorch's ({"format": "pt"}), without which transformers 4 refuses it. Errors: as above; on a
/// name that is there twice, is reserved or is not UTF-8; on a header over 100,000,000 bytes.
SafetensorsLayout LayOutSafetensors(const std::vector<SafetensorsItem>& items);

/// Divides items, in their order, into files of at most `bytes_max` bytes of elements; a larger
/// tensor gets a file of its own. Each result: indices of items. At least one file.
std::vector<std::vector<size_t>> DivideIntoShards(const std::vector<SafetensorsItem>& items,
                                                  int64_t bytes_max);

/// "model.safetensors", or "model-00001-of-00003.safetensors" for shard 0 of 3.
std::string ShardFileName(size_t shard, size_t count);

/// The text of model.safetensors.index.json.
std::string ShardIndex(const std::vector<SafetensorsItem>& items,
                       const std::vector<std::vector<size_t>>& shards);

/// Whether a file of this name holds weights, or the index, of a model in a folder.
bool IsModelFileName(const std::string& name);

}  // namespace fsdprun
