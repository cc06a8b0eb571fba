#include "worker/tokenizers/nfc.h"

#include <utf8proc.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <stdexcept>

#include "worker/tokenizers/code_points.h"
#include "worker/tokenizers/utf8.h"

namespace fsdprun::worker {
namespace {

constexpr unsigned char kLeadOfU0300 = 0xcc;

void AppendNfc(std::string_view text, std::string& out) {
  if (IsSurelyNfc(text)) {
    out += text;
    return;
  }
  utf8proc_uint8_t* normalized = nullptr;
  const utf8proc_ssize_t length =
      utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                   static_cast<utf8proc_ssize_t>(text.size()), &normalized,
                   static_cast<utf8proc_option_t>(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
  if (length < 0) {
    throw std::runtime_error(std::string("cannot normalize a text: ") + utf8proc_errmsg(length));
  }
  out.append(reinterpret_cast<const char*>(normalized), static_cast<size_t>(length));
  std::free(normalized);
}

/// A line: text before a line feed, with which nothing composes.
void AppendLine(std::string_view line, std::string& out) {
  size_t begin = 0;
  size_t at = 0;
  while (at < line.size()) {
    // All that is kept in place is above U+02FF, so most of a text need not be looked up.
    if (static_cast<unsigned char>(line[at]) < kLeadOfU0300) {
      ++at;
      continue;
    }
    const Utf8Character character = FirstCharacter(line.substr(at));
    if (IsKeptInPlace(character.code_point)) {
      AppendNfc(line.substr(begin, at - begin), out);
      out += line.substr(at, character.byte_count);
      begin = at + character.byte_count;
    }
    at += character.byte_count;
  }
  AppendNfc(line.substr(begin), out);
}

}  // namespace

bool IsSurelyNfc(std::string_view text) {
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < kLeadOfU0300; });
}

std::string ToNfc(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t end = std::min(text.size(), text.find('\n'));
    const size_t line_bytes = std::min(text.size(), end + 1);
    AppendLine(text.substr(0, line_bytes), out);
    text.remove_prefix(line_bytes);
  }
  return out;
}

}  // namespace fsdprun::worker
