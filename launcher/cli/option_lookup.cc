#include "launcher/cli/option_lookup.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launcher/cli/nearest.h"

namespace fsdprun {
namespace {

/// Names of a family's options that begin with `prefix`.
std::vector<std::string> NamesWithPrefix(CliProgram program, OptionFamily family,
                                         absl::string_view prefix) {
  std::vector<std::string> names;
  for (const OptionSpec& option : OptionsOf(program)) {
    if (option.family == family && absl::StartsWith(option.name, prefix)) {
      names.emplace_back(option.name);
    }
  }
  return names;
}

absl::StatusOr<const OptionSpec*> FindExact(CliProgram program, absl::string_view name) {
  for (const OptionSpec& option : OptionsOf(program)) {
    if (name == option.name) {
      return &option;
    }
  }
  return absl::NotFoundError(name);
}

absl::Status Unknown(CliProgram program, absl::string_view written, absl::string_view name) {
  std::string message = absl::StrCat("unknown option --", written);
  std::vector<std::string> names;
  for (const OptionSpec& option : OptionsOf(program)) {
    names.emplace_back(option.name);
  }
  if (const std::string nearest = Nearest(names, name); !nearest.empty()) {
    absl::StrAppend(&message, "; did you mean --", nearest, "?");
  } else {
    absl::StrAppend(&message, "; see ", ProgramName(program), " --help");
  }
  return absl::InvalidArgumentError(message);
}

}  // namespace

absl::StatusOr<const OptionSpec*> FindOption(CliProgram program, absl::string_view written) {
  const std::string name = absl::StrReplaceAll(written, {{"_", "-"}});
  if (auto exact = FindExact(program, name); !absl::IsNotFound(exact.status())) {
    return exact;
  }
  for (const OptionFamily family :
       {OptionFamily::kTorchrun, OptionFamily::kOwn, OptionFamily::kSbatch}) {
    const std::vector<std::string> candidates = NamesWithPrefix(program, family, name);
    if (candidates.size() == 1) {
      return FindExact(program, candidates.front());
    }
    if (!candidates.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--", written, " is ambiguous: it could be --",
                                                     absl::StrJoin(candidates, ", --")));
    }
  }
  return Unknown(program, written, name);
}

absl::StatusOr<const OptionSpec*> FindLetter(CliProgram program, char letter) {
  for (const OptionSpec& option : OptionsOf(program)) {
    if (option.letter == letter) {
      return &option;
    }
  }
  return absl::InvalidArgumentError(absl::StrCat("unknown option -", std::string(1, letter),
                                                 "; see ", ProgramName(program), " --help"));
}

bool LooksLikeOption(absl::string_view word) {
  if (word.size() < 2 || word[0] != '-') {
    return false;
  }
  const absl::string_view digits = word.substr(1);
  const bool is_number = digits.find_first_not_of("0123456789.") == absl::string_view::npos &&
                         digits.back() != '.' && std::count(digits.begin(), digits.end(), '.') < 2;
  const absl::string_view name = word.substr(0, word.find('='));
  return !is_number && !absl::StrContains(name, ' ');
}

}  // namespace fsdprun
