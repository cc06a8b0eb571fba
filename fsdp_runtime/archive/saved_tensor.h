#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/archive/pickle_reader.h"

namespace fsdp::archive {

/// A type of elements that a tensor of an archive may have.
struct ElementType {
  std::string_view name;     // torch.<name>
  std::string_view storage;  // torch.<storage>, the class a pickled tensor names; "": it has none
  int64_t bytes;
};

inline constexpr ElementType kElementTypes[] = {
    {"float32", "FloatStorage", 4},
    {"float64", "DoubleStorage", 8},
    {"float16", "HalfStorage", 2},
    {"bfloat16", "BFloat16Storage", 2},
    {"int64", "LongStorage", 8},
    {"int32", "IntStorage", 4},
    {"int16", "ShortStorage", 2},
    {"int8", "CharStorage", 1},
    {"uint8", "ByteStorage", 1},
    {"bool", "BoolStorage", 1},
    {"complex64", "ComplexFloatStorage", 8},
    {"complex128", "ComplexDoubleStorage", 16},
    {"uint16", "", 2},
    {"uint32", "", 4},
    {"uint64", "", 8},
    {"float8_e4m3fn", "", 1},
    {"float8_e5m2", "", 1},
};

/// What a pickle of tensors and plain data may name, for read_pickle().
inline constexpr PickleGlobal kTensorGlobals[] = {
    {"collections", "OrderedDict"},
    {"torch._utils", "_rebuild_tensor_v2"},
    {"torch._utils", "_rebuild_tensor_v3"},
    {"torch._utils", "_rebuild_parameter"},
    {"torch", "Size"},
    {"torch", "FloatStorage"},
    {"torch", "DoubleStorage"},
    {"torch", "HalfStorage"},
    {"torch", "BFloat16Storage"},
    {"torch", "LongStorage"},
    {"torch", "IntStorage"},
    {"torch", "ShortStorage"},
    {"torch", "CharStorage"},
    {"torch", "ByteStorage"},
    {"torch", "BoolStorage"},
    {"torch", "ComplexFloatStorage"},
    {"torch", "ComplexDoubleStorage"},
    {"torch.storage", "UntypedStorage"},
    {"torch", "uint16"},
    {"torch", "uint32"},
    {"torch", "uint64"},
    {"torch", "float8_e4m3fn"},
    {"torch", "float8_e5m2"},
};

/// A tensor as a pickle describes it: which elements of which record of the archive.
struct SavedTensor {
  const ElementType* type = nullptr;  // of kElementTypes
  std::string record;                 // "data/0"
  int64_t offset = 0;                 // of the first element, in elements
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;
  bool operator==(const SavedTensor&) const = default;

  /// How many elements the record must have, at most 2^56.
  int64_t reach() const;
};

/// Whether `node` is a tensor, or a parameter, of some kind.
inline bool is_tensor(const PickleNode& node) { return node.kind == PickleKind::kReduce; }

/// The tensor that `node` describes. `what` names it in errors. Errors: Error on a tensor that is
/// not dense, or that is conjugated or negated by a flag; on a damaged description.
SavedTensor saved_tensor(const PickleTree& tree, const PickleNode& node, const std::string& what);

/// Errors: Error, starting with `what`, if a record of so many bytes does not have all elements.
void check_within(const SavedTensor& tensor, int64_t record_bytes, const std::string& what);

}  // namespace fsdp::archive
