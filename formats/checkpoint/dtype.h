#pragma once

#include <cstdint>
#include <string_view>

namespace fsdprun::checkpoint {

/// The element types that are written and read.
enum class DType : uint8_t {
  kFloat32,
  kFloat64,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;     // torch.<name>
  std::string_view storage;  // torch.<storage>, the class a pickled tensor names
  int64_t element_bytes;
};

inline constexpr DTypeInfo kDTypes[] = {
    {DType::kFloat32, "float32", "FloatStorage", 4},
    {DType::kFloat64, "float64", "DoubleStorage", 8},
    {DType::kFloat16, "float16", "HalfStorage", 2},
    {DType::kBFloat16, "bfloat16", "BFloat16Storage", 2},
    {DType::kInt64, "int64", "LongStorage", 8},
    {DType::kInt32, "int32", "IntStorage", 4},
    {DType::kInt16, "int16", "ShortStorage", 2},
    {DType::kInt8, "int8", "CharStorage", 1},
    {DType::kUInt8, "uint8", "ByteStorage", 1},
    {DType::kBool, "bool", "BoolStorage", 1},
};

/// Indexed by the enumerator: the table is in its order.
constexpr const DTypeInfo& InfoOf(DType dtype) { return kDTypes[static_cast<uint8_t>(dtype)]; }

/// nullptr if there is none of this name.
constexpr const DTypeInfo* FindDType(std::string_view name) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.name == name) {
      return &info;
    }
  }
  return nullptr;
}

constexpr const DTypeInfo* FindStorage(std::string_view storage) {
  for (const DTypeInfo& info : kDTypes) {
    if (info.storage == storage) {
      return &info;
    }
  }
  return nullptr;
}

}  // namespace fsdprun::checkpoint
