#include "launcher/chaos/plan/checkpoint_name.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"

namespace fsdprun::chaos {
namespace {

bool IsDigit(char letter) { return absl::ascii_isdigit(static_cast<unsigned char>(letter)); }
bool IsLetter(char letter) { return absl::ascii_isalpha(static_cast<unsigned char>(letter)); }

/// What is no checkpoint yet, or not any more.
bool IsOfUnfinished(absl::string_view word) {
  constexpr absl::string_view kWords[] = {"tmp", "temp", "part", "partial", "incomplete",
                                          "old", "bak",  "lock", "new"};
  return std::find(std::begin(kWords), std::end(kWords), absl::AsciiStrToLower(word)) !=
         std::end(kWords);
}

bool HasWordOfUnfinished(absl::string_view name) {
  std::string word;
  for (const char letter : name) {
    if (IsLetter(letter)) {
      word.push_back(letter);
    } else if (IsOfUnfinished(word)) {
      return true;
    } else {
      word.clear();
    }
  }
  return IsOfUnfinished(word);
}

}  // namespace

std::optional<int64_t> CheckpointNumber(absl::string_view name) {
  const size_t dot = name.find('.');
  const absl::string_view ending = dot == absl::string_view::npos ? "" : name.substr(dot + 1);
  absl::string_view stem = name.substr(0, dot);
  size_t digits = 0;
  while (digits < stem.size() && IsDigit(stem[stem.size() - 1 - digits])) {
    ++digits;
  }
  const absl::string_view head = stem.substr(0, stem.size() - digits);
  for (const char letter : head) {
    if (!IsLetter(letter) && letter != '-' && letter != '_') {
      return std::nullopt;
    }
  }
  for (const char letter : ending) {
    if (!IsLetter(letter)) {
      return std::nullopt;
    }
  }
  int64_t number = 0;
  return !head.empty() && !HasWordOfUnfinished(name) &&
                 absl::SimpleAtoi(stem.substr(head.size()), &number)
             ? std::optional(number)
             : std::nullopt;
}

}  // namespace fsdprun::chaos
