#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "fsdp_runtime/plan/box.h"

namespace fsdprun::checkpoint {

/// The Python module of the classes that `.metadata` is a pickle of.
inline constexpr std::string_view kMetadataModule = "torch.distributed.checkpoint.metadata";

/// Where one blob (a complete torch.save archive) lies.
struct BlobLocation {
  std::string file;    // plain file name within the checkpoint
  int64_t offset = 0;  // bytes
  int64_t length = 0;  // bytes
  bool operator==(const BlobLocation&) const = default;
};

/// One stored piece of a tensor. An empty piece has no blob (no file, length 0).
struct StoredChunk {
  fsdp::plan::Box box;
  BlobLocation blob;
  bool operator==(const StoredChunk&) const = default;
};

struct StoredTensor {
  std::string dtype;  // "float32"; a name this library does not know is kept, not refused
  std::vector<int64_t> shape;
  std::vector<StoredChunk> chunks;
  bool operator==(const StoredTensor&) const = default;
};

/// One step into nested Python dicts (string) and lists (integer).
using PathPart = std::variant<std::string, int64_t>;

/// What `.metadata` says: torch.distributed.checkpoint.metadata.Metadata as plain data.
struct DcpMetadata {
  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, BlobLocation> objects;  // "bytes items": pickled Python objects
  /// Where a key belongs in the nested state dict. Keys without an entry are top-level.
  std::map<std::string, std::vector<PathPart>> paths;
  bool operator==(const DcpMetadata&) const = default;
};

/// The path in the nested state dict of a key that this library writes: "model.<fqn>" -> (model,
/// fqn); "optim.state.<fqn>.<leaf>" -> (optim, state, fqn, leaf); "a.b" -> (a, b).
std::vector<PathPart> PathOfKey(std::string_view key);

/// The bytes of `.metadata`: a protocol 2 pickle that Python's DCP reads.
std::string EncodeDcpMetadata(const DcpMetadata& metadata);

/// Reads what EncodeDcpMetadata or Python's DCP wrote, executing nothing. `what` names the file in
/// errors. Checks all that can be checked without the other files: chunks lie within their tensor,
/// do not overlap, and cover it; blobs are as long as their elements; file names are plain; numbers
/// are in range.
/// Errors: CheckpointError.
DcpMetadata DecodeDcpMetadata(std::string_view bytes, const std::string& what);

}  // namespace fsdprun::checkpoint
