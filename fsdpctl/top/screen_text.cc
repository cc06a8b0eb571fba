#include "fsdpctl/top/screen_text.h"

#include <algorithm>
#include <cwchar>
#include <cwctype>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun::top {
namespace {

/// One character: its bytes, and how wide it is; -1: it is none that can be shown.
struct Letter {
  absl::string_view bytes;
  int columns = -1;
};

Letter FirstOf(absl::string_view text) {
  std::mbstate_t state{};
  wchar_t code = 0;
  const size_t length = std::mbrtowc(&code, text.data(), text.size(), &state);
  if (length == 0 || length > text.size()) {  // A NUL, or not valid.
    return {text.substr(0, 1), -1};
  }
  const bool is_shown = std::iswprint(static_cast<wint_t>(code)) != 0;
  return {text.substr(0, length), is_shown ? ::wcwidth(code) : -1};
}

/// As much of the beginning as takes `columns`.
absl::string_view Head(absl::string_view text, int columns) {
  size_t end = 0;
  while (end < text.size()) {
    const Letter letter = FirstOf(text.substr(end));
    columns -= std::max(0, letter.columns);
    if (columns < 0) {
      break;
    }
    end += letter.bytes.size();
  }
  return text.substr(0, end);
}

}  // namespace

std::string ScreenText(absl::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const Letter letter = FirstOf(text);
    const auto first = static_cast<unsigned char>(text.front());
    if (letter.columns > 0) {
      absl::StrAppend(&shown, letter.bytes);
    } else if (letter.columns < 0) {
      shown += first < 0x20 || first == 0x7f ? ' ' : '?';
    }
    text.remove_prefix(letter.bytes.size());
  }
  return shown;
}

int ColumnsOf(absl::string_view text) {
  int columns = 0;
  while (!text.empty()) {
    const Letter letter = FirstOf(text);
    columns += std::max(0, letter.columns);
    text.remove_prefix(letter.bytes.size());
  }
  return columns;
}

std::string Fit(absl::string_view text, int columns, bool is_right) {
  if (columns <= 0) {
    return "";
  }
  const int own = ColumnsOf(text);
  if (own > columns) {
    const absl::string_view head = Head(text, columns - 1);
    const auto missing = static_cast<size_t>(columns - 1 - ColumnsOf(head));
    return absl::StrCat(head, "~", std::string(missing, ' '));
  }
  const std::string blanks(static_cast<size_t>(columns - own), ' ');
  return is_right ? absl::StrCat(blanks, text) : absl::StrCat(text, blanks);
}

std::vector<std::string> Wrap(absl::string_view text, int columns, int lines_max) {
  std::vector<std::string> lines;
  while (!text.empty() && columns > 0 && static_cast<int>(lines.size()) < lines_max) {
    if (static_cast<int>(lines.size()) + 1 == lines_max || ColumnsOf(text) <= columns) {
      lines.push_back(ColumnsOf(text) <= columns ? std::string(text) : Fit(text, columns));
      break;
    }
    absl::string_view head = Head(text, columns);
    const size_t blank = text[head.size()] == ' ' ? head.size() : head.rfind(' ');
    if (blank != absl::string_view::npos && blank > 0) {
      head = text.substr(0, blank);
    } else if (head.empty()) {  // Not even one letter fits.
      break;
    }
    lines.emplace_back(head);
    text.remove_prefix(head.size());
    text.remove_prefix(std::min(text.find_first_not_of(' '), text.size()));
  }
  return lines;
}

}  // namespace fsdprun::top
