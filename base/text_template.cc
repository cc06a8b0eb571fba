#include "base/text_template.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace fsdprun {
namespace {

/// The name that `text` begins with; maybe empty.
absl::string_view LeadingName(absl::string_view text) {
  size_t size = 0;
  while (size < text.size() && (text[size] == '_' || absl::ascii_isalpha(text[size]) ||
                                (size > 0 && absl::ascii_isdigit(text[size])))) {
    ++size;
  }
  return text.substr(0, size);
}

}  // namespace

std::string SubstituteNames(absl::string_view text,
                            const std::map<std::string, std::string>& values) {
  std::string result;
  while (!text.empty()) {
    const size_t dollar = text.find('$');
    absl::StrAppend(&result, text.substr(0, dollar));
    if (dollar == absl::string_view::npos) {
      break;
    }
    text.remove_prefix(dollar + 1);
    if (absl::ConsumePrefix(&text, "$")) {
      result.push_back('$');
      continue;
    }
    const bool is_braced = !text.empty() && text[0] == '{';
    const absl::string_view name = LeadingName(text.substr(is_braced ? 1 : 0));
    const size_t end = name.size() + (is_braced ? 2 : 0);
    const bool is_closed = !is_braced || (text.size() >= end && text[end - 1] == '}');
    const auto it = values.find(std::string(name));
    if (is_closed && it != values.end()) {
      absl::StrAppend(&result, it->second);
      text.remove_prefix(end);
    } else {
      result.push_back('$');
    }
  }
  return result;
}

}  // namespace fsdprun
