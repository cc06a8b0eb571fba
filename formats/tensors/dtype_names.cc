#include "formats/tensors/dtype_names.h"

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr DtypeNames kNames[] = {
    {"float32", "F32", 4},        {"float64", "F64", 8},   {"float16", "F16", 2},
    {"bfloat16", "BF16", 2},      {"int64", "I64", 8},     {"int32", "I32", 4},
    {"int16", "I16", 2},          {"int8", "I8", 1},       {"uint8", "U8", 1},
    {"bool", "BOOL", 1},          {"uint16", "U16", 2},    {"uint32", "U32", 4},
    {"uint64", "U64", 8},         {"complex64", "C64", 8}, {"float8_e4m3fn", "F8_E4M3", 1},
    {"float8_e5m2", "F8_E5M2", 1}};

}  // namespace

const DtypeNames* FindTorchDtype(std::string_view name) {
  for (const DtypeNames& names : kNames) {
    if (names.torch == name) {
      return &names;
    }
  }
  return nullptr;
}

const DtypeNames* FindSafetensorsDtype(std::string_view name) {
  for (const DtypeNames& names : kNames) {
    if (names.safetensors == name) {
      return &names;
    }
  }
  return nullptr;
}

int64_t ElementBytes(std::string_view torch_dtype, const std::string& tensor) {
  const DtypeNames* names = FindTorchDtype(torch_dtype);
  if (names == nullptr) {
    throw fsdp::archive::Error("cannot read the elements of " + tensor + ": its dtype " +
                               std::string(torch_dtype) + " is not known here");
  }
  return names->bytes;
}

}  // namespace fsdprun
