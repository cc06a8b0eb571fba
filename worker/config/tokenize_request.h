#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fsdprun::worker {

/// Arguments of `fsdp-train tokenize`.
struct TokenizeRequest {
  /// "bytes", a tokenizer.json, or a model of SentencePiece.
  std::string tokenizer;
  /// What is written is PREFIX.bin, PREFIX.bin.json, and PREFIX.idx for Megatron-LM.
  std::string output;
  /// "llmc", "megatron" or "raw".
  std::string format = "llmc";
  /// Files of input: "auto" (by name), "text", "lines" or "jsonl".
  std::string input_format = "auto";
  /// 0: as many as there are processors.
  int64_t threads = 0;
  /// The key of a JSON line that is its text.
  std::string text_key = "text";
  /// Whether an id stands behind each document; if it is not said, where the tokenizer has one.
  std::optional<bool> appends_document_end;
  /// The token that this id is of; empty: as the tokenizer says.
  std::string document_end;
  /// Whether each document gets what the tokenizer puts around a text.
  bool adds_special_tokens = false;
  /// The most tokens of one file; 0: all are in one.
  int64_t shard_tokens = 0;
  bool replaces_invalid_utf8 = false;
  /// Leave out lines of which no document can be made.
  bool skips_bad_lines = false;
  /// Replace what is there.
  bool is_forced = false;
  std::vector<std::string> inputs;
};

}  // namespace fsdprun::worker
