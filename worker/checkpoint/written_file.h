#pragma once

#include <string>

#include "formats/checkpoint/manifest.h"

namespace fsdprun::checkpoint {

/// What a rank tells rank 0 of the file that it has written: CBOR, since there are many items.
std::string EncodeWritten(const ManifestFile& file);
ManifestFile DecodeWritten(const std::string& bytes);

}  // namespace fsdprun::checkpoint
