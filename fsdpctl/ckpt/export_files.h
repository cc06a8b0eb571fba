#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/files/output_folder.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun::ckpt {

/// A tensor that is exported.
struct ExportedTensor {
  std::string name;    // in the result
  std::string source;  // in the source
  std::string dtype;   // torch's name of the one that it gets
};

using UsePiece = std::function<void(const void* data, int64_t byte_count)>;

/// Gives all bytes of a tensor, cast, in order to `use`; memory holds one piece.
void StreamTensor(TensorSource& source, const ExportedTensor& tensor, const UsePiece& use);

/// Bytes of the tensors of the result.
int64_t ExportedBytes(const TensorSource& source, const std::vector<ExportedTensor>& tensors);

/// Writes one file of safetensors.
void WriteSafetensors(TensorSource& source, const std::vector<ExportedTensor>& tensors,
                      const std::string& path);

/// Writes model.safetensors, or several files and their index, into the folder; returns the names.
std::vector<std::string> WriteModelFiles(TensorSource& source,
                                         const std::vector<ExportedTensor>& tensors,
                                         int64_t shard_bytes_max, const OutputFolder& folder);

/// Writes a .pt file.
void WriteTorch(TensorSource& source, const std::vector<ExportedTensor>& tensors,
                const std::string& path, Existing existing);

}  // namespace fsdprun::ckpt
