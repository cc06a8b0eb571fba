// A tokenizer.json -> a tokenizer, and with it a text -> ids. The text is what follows the first
// zero byte of the input; an input that begins with "info:" is the description of a token file, and
// one that begins with "pattern:" a pattern that divides the text.

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "formats/json/strict_json.h"
#include "formats/tokens/token_file_info.h"
#include "tests/fuzz/fuzz_support.h"
#include "worker/tokenizers/byte_level.h"
#include "worker/tokenizers/split_regex.h"
#include "worker/tokenizers/tokenizer.h"
#include "worker/tokenizers/tokenizer_json.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

// What a thread keeps to encode, and what a pattern is compiled to.
constexpr size_t kFixedBytes = size_t{24} << 20;
constexpr size_t kMaxTextBytes = 256;

/// Calls `read`; false if it throws the documented exception.
template <class Read>
bool IsAccepted(size_t input_bytes, Read&& read) {
  try {
    const fuzz::MemoryBound bound(kFixedBytes + 4096 * input_bytes);
    read();
    return true;
  } catch (const ConfigError& error) {
    FSDPRUN_CHECK(fuzz::IsOneLine(error.what()), "error message is not one line");
    return false;
  }
}

void FuzzInfo(std::string_view text) {
  TokenFileInfo info;
  if (IsAccepted(text.size(), [&] {
        info = ParseTokenFileInfo(ParseStrictJson(text, "the file"), "the file");
      })) {
    FSDPRUN_CHECK(info == ParseTokenFileInfo(ParseStrictJson(FormatTokenFileInfo(info), ""), ""),
                  "what was read is not what is written");
  }
}

void FuzzPattern(std::string_view pattern, std::string_view text) {
  IsAccepted(pattern.size() + text.size(), [&] {
    const SplitRegex regex(std::string(pattern), "the file");
    RegexScratch scratch;
    scratch.SetTextBytes(text.size());
    SplitRegex::Match match;
    size_t at = 0;
    while (at < text.size() && regex.Find(text, at, scratch, match)) {
      FSDPRUN_CHECK(match.begin >= at && match.end > match.begin && match.end <= text.size(),
                    "a match outside the text, or of nothing");
      at = match.end;
    }
  });
}

/// Whether a token that is found in text has an id that bytes which are spelled like it have, too.
bool IsAmbiguous(const AddedToken& token, const TokenizerJson& json) {
  const std::optional<std::string> bytes = BytesOfToken(token.content);
  return bytes && *bytes != token.content &&
         std::any_of(json.vocabulary.tokens.begin(), json.vocabulary.tokens.end(),
                     [&](const auto& each) { return each.first == *bytes; });
}

/// Whether ids of a text stand for that text and nothing else.
bool KeepsText(const TokenizerJson& json) {
  return !json.is_normalized && json.before_text.empty() && json.behind_text.empty() &&
         std::all_of(json.rules.begin(), json.rules.end(),
                     [](const WordRule& rule) {
                       return !rule.adds_prefix_space && rule.behavior != MatchBehavior::kRemoved;
                     }) &&
         std::none_of(json.added_tokens.begin(), json.added_tokens.end(),
                      [&](const AddedToken& token) { return IsAmbiguous(token, json); });
}

void FuzzTokenizer(std::string_view file, std::string_view text) {
  IsAccepted(file.size() + text.size(), [&] {
    const auto tokenizer = MakeJsonTokenizer(file, "the file");
    std::vector<uint32_t> ids;
    tokenizer->Encode(text, Tokenizer::SpecialTokens::kAdded, ids);
    const std::string decoded = tokenizer->Decode(ids);
    if (KeepsText(ParseTokenizerJson(file, "the file"))) {
      FSDPRUN_CHECK(decoded == text, "the ids stand for another text");
    }
  });
}

}  // namespace
}  // namespace fsdprun::worker

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace fsdprun::worker;  // NOLINT(google-build-using-namespace)
  const std::string_view input = fsdprun::fuzz::AsText(data, size);
  const size_t end = std::min(input.size(), input.find('\0'));
  const std::string_view file = input.substr(0, end);
  // Only what is UTF-8 is matched.
  std::string_view rest = input.substr(std::min(input.size(), end + 1));
  rest = rest.substr(0, std::min(kMaxTextBytes, ValidUtf8Bytes(rest)));
  rest = rest.substr(0, ValidUtf8Bytes(rest));
  if (file.starts_with("info:")) {
    FuzzInfo(file.substr(5));
  } else if (file.starts_with("pattern:")) {
    FuzzPattern(file.substr(8), rest);
  } else {
    FuzzTokenizer(file, rest);
  }
  return 0;
}
