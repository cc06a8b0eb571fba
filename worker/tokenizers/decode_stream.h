#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {

/// Text of ids that come one after the other: what all of them stand for together, in parts that do
/// not end within a character where that can be helped. Thread: one.
class DecodeStream {
 public:
  /// `tokenizer` outlives it.
  explicit DecodeStream(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  /// What has become whole with `id`; may be empty. Errors: as Tokenizer::Decode's.
  std::string Next(uint32_t id);
  /// What is left at the end, whole or not.
  std::string End();

 private:
  const Tokenizer& tokenizer_;
  /// Those whose text has been given, as far as the next ones depend on them, then those whose text
  /// has not.
  std::vector<uint32_t> ids_;
  size_t given_ = 0;
};

}  // namespace fsdprun::worker
