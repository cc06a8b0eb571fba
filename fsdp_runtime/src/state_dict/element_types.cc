#include "fsdp_runtime/src/state_dict/element_types.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <iterator>
#include <string_view>

namespace fsdp {
namespace {

struct NamedDtype {
  std::string_view name;
  at::ScalarType dtype;
};

constexpr NamedDtype kDtypes[] = {
    {"float32", at::kFloat},
    {"float64", at::kDouble},
    {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16},
    {"int64", at::kLong},
    {"int32", at::kInt},
    {"int16", at::kShort},
    {"int8", at::kChar},
    {"uint8", at::kByte},
    {"bool", at::kBool},
    {"complex64", at::kComplexFloat},
    {"complex128", at::kComplexDouble},
    {"uint16", at::kUInt16},
    {"uint32", at::kUInt32},
    {"uint64", at::kUInt64},
    {"float8_e4m3fn", at::kFloat8_e4m3fn},
    {"float8_e5m2", at::kFloat8_e5m2},
};

}  // namespace

at::ScalarType dtype_of(const archive::ElementType& type) {
  const auto* found =
      std::find_if(std::begin(kDtypes), std::end(kDtypes),
                   [&](const NamedDtype& named) { return named.name == type.name; });
  TORCH_INTERNAL_ASSERT(found != std::end(kDtypes), type.name);
  return found->dtype;
}

bool can_be_saved(at::ScalarType dtype) {
  return std::any_of(std::begin(archive::kElementTypes), std::end(archive::kElementTypes),
                     [dtype](const archive::ElementType& type) {
                       return !type.storage.empty() && dtype_of(type) == dtype;
                     });
}

}  // namespace fsdp
