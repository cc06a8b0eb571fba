#include "worker/tokenizers/added_tokens.h"

#include <algorithm>

#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

// \w of the Rust library regex but for a few marks and symbols that are Alphabetic.
constexpr char kWordCharacter[] =
    R"([\p{L}\p{M}\p{Nd}\p{Nl}_\x{203f}\x{2040}\x{2054}\x{fe33}\x{fe34}\x{fe4d}-\x{fe4f}\x{ff3f}\x{200c}\x{200d}\x{24b6}-\x{24e9}\x{1f130}-\x{1f149}\x{1f150}-\x{1f169}\x{1f170}-\x{1f189}])";

/// The first byte of the character that ends at `end`.
size_t BeginOfCharacterBefore(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80);
  return end;
}

size_t WhiteSpaceBefore(std::string_view text, size_t end) {
  while (end > 0) {
    const size_t begin = BeginOfCharacterBefore(text, end);
    if (!IsWhiteSpace(FirstCharacter(text.substr(begin)).code_point)) {
      break;
    }
    end = begin;
  }
  return end;
}

size_t WhiteSpaceBehind(std::string_view text, size_t begin) {
  while (begin < text.size()) {
    const Utf8Character character = FirstCharacter(text.substr(begin));
    if (!IsWhiteSpace(character.code_point)) {
      break;
    }
    begin += character.byte_count;
  }
  return begin;
}

}  // namespace

AddedTokens::AddedTokens(const std::vector<AddedToken>& tokens)
    : word_character_(kWordCharacter, "added_tokens") {
  for (const AddedToken& token : tokens) {
    tokens_.emplace(token.content, token);
    size_t& longest = longest_of_[static_cast<unsigned char>(token.content[0])];
    longest = std::max(longest, token.content.size());
  }
}

const AddedToken* AddedTokens::LongestAt(std::string_view rest) const {
  const std::string_view start = rest.substr(0, longest_of_[static_cast<unsigned char>(rest[0])]);
  // In the order of a map, what begins `start` lies before it; the longest of them is the last, and
  // only others that have more in common with `start` than a shorter one lie between.
  auto after = tokens_.upper_bound(start);
  size_t in_common = start.size();
  while (after != tokens_.begin() && in_common > 0) {
    --after;
    const std::string& content = after->first;
    const size_t same = static_cast<size_t>(
        std::mismatch(content.begin(), content.end(), start.begin(), start.end()).first -
        content.begin());
    if (same == content.size()) {
      return &after->second;
    }
    // What begins both is shorter than what they have in common: go there at once.
    in_common = same;
    after = tokens_.upper_bound(start.substr(0, in_common));
  }
  return nullptr;
}

bool AddedTokens::StandsAlone(std::string_view text, size_t begin, size_t end,
                              RegexScratch& scratch) const {
  const auto is_word = [&](std::string_view character) {
    SplitRegex::Match match;
    return word_character_.Find(character, 0, scratch, match);
  };
  if (begin > 0) {
    const size_t before = BeginOfCharacterBefore(text, begin);
    if (is_word(text.substr(before, begin - before))) {
      return false;
    }
  }
  return end == text.size() ||
         !is_word(text.substr(end, FirstCharacter(text.substr(end)).byte_count));
}

std::vector<TextPart> AddedTokens::Divide(std::string_view text, RegexScratch& scratch) const {
  std::vector<TextPart> parts;
  size_t done = 0;
  size_t at = 0;
  while (at < text.size()) {
    const bool may_begin = longest_of_[static_cast<unsigned char>(text[at])] != 0;
    const AddedToken* token = may_begin ? LongestAt(text.substr(at)) : nullptr;
    if (token == nullptr) {
      ++at;
      continue;
    }
    size_t begin = at;
    size_t end = at + token->content.size();
    at = end;
    if (token->is_single_word && !StandsAlone(text, begin, end, scratch)) {
      continue;
    }
    if (token->strips_left) {
      begin = std::max(WhiteSpaceBefore(text, begin), done);
    }
    if (token->strips_right) {
      end = WhiteSpaceBehind(text, end);
    }
    if (done < begin) {
      parts.push_back({done, begin, TextPart::kNoToken});
    }
    parts.push_back({begin, end, token->id});
    done = end;
  }
  if (done != text.size()) {
    parts.push_back({done, text.size(), TextPart::kNoToken});
  }
  return parts;
}

}  // namespace fsdprun::worker
