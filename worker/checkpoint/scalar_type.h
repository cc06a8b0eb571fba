#pragma once

#include <c10/core/ScalarType.h>

#include <string>

#include "formats/checkpoint/dtype.h"
#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {

inline constexpr at::ScalarType kScalarTypes[] = {
    at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kLong,
    at::kInt,   at::kShort,  at::kChar, at::kByte,     at::kBool,
};

inline at::ScalarType ToScalarType(DType dtype) { return kScalarTypes[static_cast<int>(dtype)]; }

/// Errors: CheckpointError naming `key` for a dtype that is not stored.
inline DType ToDType(at::ScalarType type, const std::string& key) {
  for (const DTypeInfo& info : kDTypes) {
    if (ToScalarType(info.dtype) == type) {
      return info.dtype;
    }
  }
  throw CheckpointError("cannot store " + key + ": dtype " + c10::toString(type) +
                        " is not supported");
}

}  // namespace fsdprun::checkpoint
