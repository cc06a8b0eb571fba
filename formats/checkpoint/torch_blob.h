#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/dtype.h"
#include "fsdp_runtime/archive/pickle_writer.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun::checkpoint {

// Note [Blobs]
// A blob is a complete torch.save archive: a stored (never compressed) zip with data.pkl, version,
// byteorder and, for a tensor, data/0. The writer frames raw element bytes with a prefix and a
// suffix of known length, so that a file's size is known before anything is written and tensors
// are written from their own memory. Chunks stay below 4 GiB, so no Zip64 is written; it is read.

/// The parts around the element bytes.
struct BlobFrame {
  std::string prefix;  // its length is a multiple of 64, where data/0 begins
  std::string suffix;
};

/// Pushes a row-major tensor that is all of the storage "data/<storage>".
void EmitTensor(fsdp::archive::PickleWriter& out, DType dtype, const std::vector<int64_t>& sizes,
                std::string_view storage);

/// The largest tensor that one blob takes.
inline constexpr int64_t kBlobDataBytesMax = (int64_t{1} << 32) - (int64_t{1} << 20);

/// Of data that something else has a checksum of. As torch.serialization.set_crc32_options(False):
/// torch.load compares no CRC-32 anyway.
inline constexpr uint32_t kNoCrc32 = 0;

/// `data_crc32`: CRC-32 of the element bytes (the lengths do not depend on it), or kNoCrc32.
BlobFrame FrameTensor(DType dtype, const std::vector<int64_t>& sizes, uint32_t data_crc32);

/// A blob of one Python object made of dicts, lists, strings, ints, floats, bools and None.
/// Errors: CheckpointError on NaN, infinity or nesting deeper than 64.
std::string PackObject(const nlohmann::json& value);

/// Where the elements of a tensor blob lie.
struct TensorBlob {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> sizes;
  int64_t data_offset = 0;          // bytes from the blob's start to the tensor's first element
  fsdp::archive::ZipRecord record;  // the storage, which may be larger than the tensor
};

/// Reads the frame, not the data. `what` names the item in errors.
/// Errors: CheckpointError on anything that is not a stored, contiguous, row-major tensor whose
/// bytes all lie within the blob.
TensorBlob ReadTensorFrame(const fsdp::archive::ByteSource& source, const std::string& what);

/// The object of a blob that PackObject or Python's torch.save wrote; tuples come back as arrays.
/// Errors: CheckpointError if it holds anything but plain data.
nlohmann::json UnpackObject(const fsdp::archive::ByteSource& source, const std::string& what);

}  // namespace fsdprun::checkpoint
