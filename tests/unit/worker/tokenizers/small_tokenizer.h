#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/json/strict_json.h"
#include "worker/tokenizers/byte_level.h"

namespace fsdprun::worker {

/// A tokenizer.json with a token for each byte (its id is the byte), the merges "he", "ll", "hell",
/// "hello" and " w" (256 to 260), and <|endoftext|> (261).
inline Json SmallTokenizer() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    vocab[TokenOfBytes(std::string(1, static_cast<char>(byte)))] = byte;
  }
  const std::vector<std::string> merged = {"he", "ll", "hell", "hello", TokenOfBytes(" w")};
  for (const std::string& token : merged) {
    vocab[token] = vocab.size();
  }
  const std::string space = TokenOfBytes(" ");
  const Json merges = {"h e", "l l", "he ll", "hell o", space + " w"};
  const Json end = {
      {"id", 261},       {"content", "<|endoftext|>"}, {"single_word", false}, {"lstrip", false},
      {"rstrip", false}, {"normalized", false},        {"special", true}};
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", Json::array({end})},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}}},
          {"post_processor", nullptr},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

/// The file with the value at `pointer` replaced, or added.
inline std::string WithValue(std::string_view pointer, const Json& value) {
  Json file = SmallTokenizer();
  file[Json::json_pointer(std::string(pointer))] = value;
  return file.dump();
}

}  // namespace fsdprun::worker
