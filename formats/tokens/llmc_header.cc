#include "formats/tokens/llmc_header.h"

#include <array>
#include <cstring>

namespace fsdprun {
namespace {

constexpr int32_t kGpt2Tokens = 20240520;
constexpr int32_t kLlama3Tokens = 20240801;

/// Files of llm.c that begin alike and hold no text.
struct OtherFile {
  int32_t magic;
  const char* what;
};
constexpr std::array<OtherFile, 3> kOtherFiles = {{{20240522, "questions of an evaluation"},
                                                   {20240328, "a tokenizer"},
                                                   {20240326, "the weights of a model"}}};

int32_t NumberAt(std::string_view head, size_t index) {
  int32_t number = 0;
  std::memcpy(&number, head.data() + index * sizeof number, sizeof number);
  return number;
}

std::string HeaderField(size_t index, int64_t value) {
  return "header[" + std::to_string(index) + "] = " + std::to_string(value) + " at offset " +
         std::to_string(4 * index);
}

}  // namespace

bool IsLlmcFile(std::string_view head) {
  if (head.size() < sizeof(int32_t)) {
    return false;
  }
  const int32_t magic = NumberAt(head, 0);
  for (const OtherFile& other : kOtherFiles) {
    if (magic == other.magic) {
      return true;
    }
  }
  return magic == kGpt2Tokens || magic == kLlama3Tokens;
}

LlmcHeader ParseLlmcHeader(std::string_view head, int64_t file_bytes, const std::string& source) {
  if (head.size() < static_cast<size_t>(kLlmcHeaderBytes) || file_bytes < kLlmcHeaderBytes) {
    throw ConfigError(source + ": truncated: " + std::to_string(file_bytes) +
                      " bytes are too few for a token file of llm.c, whose header has " +
                      std::to_string(kLlmcHeaderBytes));
  }
  const int32_t magic = NumberAt(head, 0);
  for (const OtherFile& other : kOtherFiles) {
    if (magic == other.magic) {
      throw ConfigError(source + ": " + HeaderField(0, magic) + ": it holds " + other.what +
                        " for llm.c, not tokens; give a file of tokens");
    }
  }
  if (magic != kGpt2Tokens && magic != kLlama3Tokens) {
    throw ConfigError(source + ": " + HeaderField(0, magic) +
                      ": expected 20240520 or 20240801, with which a token file of llm.c begins");
  }
  const bool is_gpt2 = magic == kGpt2Tokens;
  const int32_t version = NumberAt(head, 1);
  if (version != (is_gpt2 ? 1 : 7)) {
    throw ConfigError(source + ": " + HeaderField(1, version) + ": expected version " +
                      (is_gpt2 ? "1" : "7") + "; make the file again with a known version");
  }
  const LlmcHeader header{is_gpt2 ? TokenDtype::kUint16 : TokenDtype::kUint32, NumberAt(head, 2)};
  const int64_t expected = kLlmcHeaderBytes + header.tokens * TokenBytes(header.dtype);
  if (header.tokens < 0 || expected != file_bytes) {
    throw ConfigError(source + ": " + HeaderField(2, header.tokens) + ": so many tokens of " +
                      std::string(TokenDtypeName(header.dtype)) + " need a file of " +
                      std::to_string(expected) + " bytes, and it has " +
                      std::to_string(file_bytes) +
                      "; it was cut short or is still being written: copy or make it again");
  }
  return header;
}

}  // namespace fsdprun
