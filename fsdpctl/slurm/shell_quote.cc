#include "fsdpctl/slurm/shell_quote.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace fsdprun {
namespace {

/// sbatch's is 8 KiB for the option and its value.
constexpr size_t kLongestDirective = 8000;

/// Nobody gives it a meaning, inside of a word.
bool IsPlain(char c) { return absl::ascii_isalnum(c) || absl::StrContains("%+,-./:=@_", c); }

bool IsPlainText(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsPlain);
}

// In $'...' what is no printable ASCII is an octal number: bash may be in a locale in which bytes
// join to other characters, and sbatch refuses files with the line ends of DOS.
std::string Escaped(absl::string_view word) {
  std::string text = "$'";
  for (const char c : word) {
    if (c == '\\' || c == '\'') {
      absl::StrAppend(&text, "\\", std::string(1, c));
    } else if (absl::ascii_isprint(static_cast<unsigned char>(c))) {
      text.push_back(c);
    } else {
      absl::StrAppendFormat(&text, "\\%03o", static_cast<unsigned>(static_cast<unsigned char>(c)));
    }
  }
  return absl::StrCat(text, "'");
}

bool HasControls(absl::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); });
}

}  // namespace

std::string ShellQuoted(absl::string_view word) {
  if (IsPlainText(word)) {
    return std::string(word);
  }
  return HasControls(word) ? Escaped(word)
                           : absl::StrCat("'", absl::StrReplaceAll(word, {{"'", "'\\''"}}), "'");
}

std::string DirectiveQuoted(absl::string_view value) {
  if (IsPlainText(value)) {
    return std::string(value);
  }
  return absl::StrCat("\"", absl::StrReplaceAll(value, {{"\\", "\\\\"}, {"\"", "\\\""}}), "\"");
}

bool IsDirectiveValue(absl::string_view value) {
  return value.size() <= kLongestDirective && !HasControls(value);
}

}  // namespace fsdprun
