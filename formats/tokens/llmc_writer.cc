#include "formats/tokens/llmc_writer.h"

#include "formats/tokens/llmc_header.h"

namespace fsdprun {
namespace {

void PutInt32(uint32_t value, size_t index, std::string& header) {
  for (size_t i = 0; i < sizeof value; ++i) {
    header[index * sizeof value + i] = static_cast<char>(value >> (8 * i));
  }
}

}  // namespace

std::string FormatLlmcHeader(TokenDtype dtype, int64_t tokens) {
  const bool is_gpt2 = dtype == TokenDtype::kUint16;
  std::string header(static_cast<size_t>(kLlmcHeaderBytes), '\0');
  PutInt32(is_gpt2 ? 20240520 : 20240801, 0, header);
  PutInt32(is_gpt2 ? 1 : 7, 1, header);
  PutInt32(static_cast<uint32_t>(tokens), 2, header);
  return header;
}

}  // namespace fsdprun
