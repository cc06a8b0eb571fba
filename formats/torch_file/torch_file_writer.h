#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/files/output_file.h"

namespace fsdprun {

/// A tensor of a `.pt` file; `dtype` as torch names it ("float32").
struct TorchFileTensor {
  std::string name;
  std::string dtype;
  std::vector<int64_t> shape;
};

/// A stored record of the zip and where it lies.
struct TorchFileRecord {
  std::string name;
  int64_t header_offset = 0;  // bytes from the start of the file
  int64_t data_offset = 0;
  int64_t byte_count = 0;
  std::string bytes;  // of a small one; those of a tensor are written piece by piece
};

/// Where everything will lie: known before any element is.
struct TorchFileLayout {
  std::vector<TorchFileRecord> records;
  size_t first_tensor = 0;  // index of the first tensor's record; the others follow it
  size_t tensor_count = 0;
  int64_t directory_offset = 0;
  int64_t file_bytes = 0;
  int64_t zip32_max = 0;
};

/// The largest number that a zip without Zip64 holds.
inline constexpr int64_t kZip32Max = 0xfffffffe;

/// What torch.save({name: tensor}) writes: torch.load(weights_only=True) reads it. Each tensor has
/// its own storage, aligned to 64 bytes. Records, or places, beyond `zip32_max` are written as
/// Zip64. Errors: fsdp::archive::Error on a dtype that has no storage class of its own, on a name
/// that is there twice.
TorchFileLayout LayOutTorchFile(const std::vector<TorchFileTensor>& tensors,
                                int64_t zip32_max = kZip32Max);

/// Takes the next bytes of a tensor.
using WritePiece = std::function<void(const void* data, int64_t byte_count)>;
/// Gives the bytes of tensor `index` in order to `write`.
using ReadTensorPieces = std::function<void(size_t index, const WritePiece& write)>;

/// Writes a file that was opened with layout.file_bytes; does not publish it. Streams. Errors:
/// OutputFile's; fsdp::archive::Error if a tensor gives another number of bytes.
void WriteTorchFile(const TorchFileLayout& layout, const ReadTensorPieces& read, OutputFile& file);

}  // namespace fsdprun
