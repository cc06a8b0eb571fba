#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace fsdprun {

/// A type of elements as torch and as safetensors name it.
struct DtypeNames {
  std::string_view torch;
  std::string_view safetensors;
  int64_t bytes;
};

/// nullptr if no such type has both names.
const DtypeNames* FindTorchDtype(std::string_view name);
const DtypeNames* FindSafetensorsDtype(std::string_view name);

/// Bytes of an element. Errors: fsdp::archive::Error naming `tensor` if the type is not known.
int64_t ElementBytes(std::string_view torch_dtype, const std::string& tensor);

}  // namespace fsdprun
