#include "agent/output/line_format.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/text_template.h"

namespace fsdprun {
namespace {

constexpr char kReplacement[] = "\xEF\xBF\xBD";

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

/// Of the second byte of a character that begins with `lead`: this excludes characters in too many
/// bytes, surrogates, and what is beyond U+10FFFF.
std::pair<unsigned char, unsigned char> SecondByteRange(unsigned char lead) {
  switch (lead) {
    case 0xE0:
      return {0xA0, 0xBF};
    case 0xED:
      return {0x80, 0x9F};
    case 0xF0:
      return {0x90, 0xBF};
    case 0xF4:
      return {0x80, 0x8F};
    default:
      return {0x80, 0xBF};
  }
}

size_t CharacterSize(unsigned char lead) {
  if (lead < 0x80) {
    return 1;
  }
  if (lead < 0xC2 || lead > 0xF4) {
    return 0;
  }
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

struct Character {
  size_t size = 1;
  bool is_valid = true;
};

/// The character at the front, or the longest beginning of one: what is replaced as a whole.
Character FirstCharacter(absl::string_view bytes) {
  const auto byte = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const size_t expected = CharacterSize(byte(0));
  auto [lowest, highest] = SecondByteRange(byte(0));
  size_t size = 1;
  while (size < expected && size < bytes.size() && byte(size) >= lowest && byte(size) <= highest) {
    ++size;
    lowest = 0x80;
    highest = 0xBF;
  }
  return {size, size == expected};
}

}  // namespace

std::string ReplaceInvalidUtf8(absl::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Character character = FirstCharacter(bytes);
    absl::StrAppend(&text, character.is_valid ? bytes.substr(0, character.size)
                                              : absl::string_view(kReplacement));
    bytes.remove_prefix(character.size);
  }
  return text;
}

std::string LinePrefix(const OutputOptions& options, const std::string& role, int rank,
                       int local_rank) {
  if (options.prefix_template.empty()) {
    return absl::StrCat("[", role, local_rank, "]:");
  }
  return SubstituteNames(options.prefix_template, {{"role_name", role},
                                                   {"rank", absl::StrCat(rank)},
                                                   {"local_rank", absl::StrCat(local_rank)}});
}

std::string LineFormat::Take(absl::string_view bytes) {
  std::string lines;
  if (is_prefixed_) {
    TakePrefixed(bytes, &lines);
  } else {
    TakePlain(bytes, &lines);
  }
  if (partial_.size() > kMaxLineBytes) {
    absl::StrAppend(&lines, TakeRest());
  }
  return lines;
}

std::string LineFormat::TakeRest() {
  std::string rest = std::exchange(partial_, std::string());
  if (!is_prefixed_ || rest.empty()) {
    return rest;
  }
  std::string line;
  AppendLine(rest, &line);
  return line;
}

void LineFormat::TakePlain(absl::string_view bytes, std::string* lines) {
  const size_t end = bytes.find_last_of("\n\r");
  const size_t whole = end == absl::string_view::npos ? 0 : end + 1;
  if (whole > 0) {
    *lines = std::exchange(partial_, std::string());
    absl::StrAppend(lines, bytes.substr(0, whole));
  }
  absl::StrAppend(&partial_, bytes.substr(whole));
}

void LineFormat::TakePrefixed(absl::string_view bytes, std::string* lines) {
  while (!bytes.empty()) {
    const size_t end = bytes.find_first_of("\n\r");
    const absl::string_view text = bytes.substr(0, end);
    if (!text.empty()) {
      absl::StrAppend(&partial_, text);
      last_end_ = LastEnd::kNone;
    }
    if (end == absl::string_view::npos) {
      break;
    }
    EndLine(bytes[end], lines);
    bytes.remove_prefix(end + 1);
  }
}

/// "\r\n" is one end, wherever the bytes were cut.
void LineFormat::EndLine(char end, std::string* lines) {
  const LastEnd before = std::exchange(last_end_, LastEnd::kNone);
  const std::string text = std::exchange(partial_, std::string());
  if (end == '\r') {
    last_end_ = text.empty() ? LastEnd::kReturnOfNothing : LastEnd::kReturn;
  }
  if (!text.empty() || (end == '\n' && before != LastEnd::kReturn)) {
    AppendLine(text, lines);
  }
}

void LineFormat::AppendLine(absl::string_view text, std::string* lines) const {
  if (!texts_.empty() &&
      std::none_of(texts_.begin(), texts_.end(),
                   [text](const std::string& wanted) { return absl::StrContains(text, wanted); })) {
    return;
  }
  absl::StrAppend(lines, prefix_);
  if (IsAscii(text)) {
    absl::StrAppend(lines, text);
  } else {
    absl::StrAppend(lines, ReplaceInvalidUtf8(text));
  }
  lines->push_back('\n');
}

}  // namespace fsdprun
