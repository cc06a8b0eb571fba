// Text -> a word of a batch file, and the value of one of sbatch's options. Properties: each is on
// one line, and readers that know nothing but the rules of bash and of sbatch read back the text.

#include <string>

#include "base/check.h"
#include "fsdpctl/slurm/shell_quote.h"
#include "tests/fuzz/fuzz_support.h"

namespace fsdprun {
namespace {

// The byte that an escape of $'...' stands for, from the character behind the backslash on.
char TakeEscape(const std::string& text, size_t* at) {
  const char first = text.at((*at)++);
  if (first < '0' || first > '7') {
    return first;
  }
  int byte = first - '0';
  for (int digits = 1; digits < 3 && text.at(*at) >= '0' && text.at(*at) <= '7'; ++digits) {
    byte = byte * 8 + (text.at((*at)++) - '0');
  }
  return static_cast<char>(byte);
}

// One word, as bash reads it. What bash would look into, or end the word at, is none.
std::string ReadAsBash(const std::string& text) {
  std::string word;
  for (size_t at = 0; at < text.size();) {
    const bool is_escaped = text.compare(at, 2, "$'") == 0;
    if (is_escaped || text[at] == '\'') {
      for (at += is_escaped ? 2 : 1; text.at(at) != '\'';) {
        const char c = text[at++];
        word.push_back(is_escaped && c == '\\' ? TakeEscape(text, &at) : c);
      }
      ++at;
      continue;
    }
    const bool is_backslash = text[at] == '\\';
    at += is_backslash ? 1 : 0;
    const bool is_special =
        std::string(" \t\n|&;()<>$`\\\"'*?[]#~{}!^").find(text.at(at)) != std::string::npos;
    FSDPRUN_CHECK(is_backslash || !is_special, "bash would not read it as a plain character");
    word.push_back(text[at++]);
  }
  return word;
}

// The value of an option, as sbatch reads a line of a batch file.
std::string ReadAsSbatch(const std::string& text) {
  std::string value;
  char quote = '\0';
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] == '\\') {
      value.push_back(text.at(++at));
    } else if (quote == '\0' && (text[at] == '"' || text[at] == '\'')) {
      quote = text[at];
    } else if (quote != '\0' && text[at] == quote) {
      quote = '\0';
    } else {
      FSDPRUN_CHECK(quote != '\0' || (text[at] != '#' && text[at] != ' '), "the value ends here");
      value.push_back(text[at]);
    }
  }
  FSDPRUN_CHECK(quote == '\0', "a quote that is not closed");
  return value;
}

void Fuzz(std::string_view input) {
  const std::string text(input.substr(0, input.find('\0')));
  const std::string word = ShellQuoted(text);
  for (const char c : word) {
    FSDPRUN_CHECK(static_cast<unsigned char>(c) >= ' ' && c != '\x7f', "more than one line");
  }
  FSDPRUN_CHECK(!word.empty() && ReadAsBash(word) == text, "bash reads another word");
  if (IsDirectiveValue(text)) {
    FSDPRUN_CHECK(ReadAsSbatch(DirectiveQuoted(text)) == text, "sbatch reads another value");
  }
}

}  // namespace
}  // namespace fsdprun

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  fsdprun::Fuzz(fsdprun::fuzz::AsText(data, size));
  return 0;
}
