#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "worker/tokenizers/split_regex.h"

namespace fsdprun::worker {

/// A token that is found in the text before it is divided into words.
struct AddedToken {
  uint32_t id = 0;
  std::string content;
  /// Not found where a letter or digit is next to it.
  bool is_single_word = false;
  /// White space before it, or behind it, is part of it.
  bool strips_left = false;
  bool strips_right = false;
  /// Looked for in the normalized text, as its own normalized form; else in the text as it is.
  bool is_normalized = false;
  bool is_special = false;
};

/// A part of a text: a token, or what lies between two.
struct TextPart {
  static constexpr uint32_t kNoToken = UINT32_MAX;
  size_t begin = 0;
  size_t end = 0;
  uint32_t id = kNoToken;
};

/// Finds added tokens in text: the first, of several at one place the longest, then the first
/// behind that. Thread: any.
class AddedTokens {
 public:
  /// `tokens` have different contents, none empty.
  explicit AddedTokens(const std::vector<AddedToken>& tokens);

  bool empty() const { return tokens_.empty(); }
  /// The parts of `text`, which is UTF-8, in their order; none is empty but those of tokens may
  /// overlap what lies before them by white space.
  std::vector<TextPart> Divide(std::string_view text, RegexScratch& scratch) const;

 private:
  const AddedToken* LongestAt(std::string_view rest) const;
  bool StandsAlone(std::string_view text, size_t begin, size_t end, RegexScratch& scratch) const;

  std::map<std::string, AddedToken, std::less<>> tokens_;
  /// The longest content with this first byte; 0: none.
  std::array<size_t, 256> longest_of_{};
  SplitRegex word_character_;
};

}  // namespace fsdprun::worker
