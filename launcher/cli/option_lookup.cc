#include "launcher/cli/option_lookup.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"

namespace fsdprun {
namespace {

struct MissingOption {
  const char* name;
  char letter;
};
// Options of torchrun that change behaviour: refusing them is safer than ignoring them.
constexpr MissingOption kMissing[] = {
    {"tee", 't'},
    {"redirects", 'r'},
    {"local-ranks-filter", 0},
    {"event-log-handler", 0},
    {"numa-binding", 0},
    {"duplicate-stdout-filters", 0},
    {"duplicate-stderr-filters", 0},
};

absl::Status NotSupported(const char* name) {
  return absl::InvalidArgumentError(absl::StrCat("torchrun's --", name, " is not supported yet"));
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) {
    row[j] = j;
  }
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row[b.size()];
}

/// Empty if none is close enough to be suggested.
std::string Nearest(const std::vector<std::string>& names, absl::string_view written) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, written.size() / 3) + 1;
  for (const std::string& name : names) {
    if (const size_t distance = EditDistance(written, name); distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

/// Names of a family's options that begin with `prefix`, those of torchrun that are missing here
/// included: what is ambiguous there must not become something else here.
std::vector<std::string> NamesWithPrefix(CliProgram program, OptionFamily family,
                                         absl::string_view prefix) {
  std::vector<std::string> names;
  for (const OptionSpec& option : OptionTable()) {
    if (option.family == family && Offers(program, option) &&
        absl::StartsWith(option.name, prefix)) {
      names.emplace_back(option.name);
    }
  }
  for (const MissingOption& option : kMissing) {
    if (family == OptionFamily::kTorchrun && absl::StartsWith(option.name, prefix)) {
      names.emplace_back(option.name);
    }
  }
  return names;
}

absl::StatusOr<const OptionSpec*> FindExact(CliProgram program, absl::string_view name) {
  for (const OptionSpec& option : OptionTable()) {
    if (name == option.name && Offers(program, option)) {
      return &option;
    }
  }
  for (const MissingOption& option : kMissing) {
    if (name == option.name) {
      return NotSupported(option.name);
    }
  }
  return absl::NotFoundError(name);
}

absl::Status Unknown(CliProgram program, absl::string_view written, absl::string_view name) {
  std::string message = absl::StrCat("unknown option --", written);
  std::vector<std::string> names = NamesWithPrefix(program, OptionFamily::kTorchrun, "");
  const std::vector<std::string> own = NamesWithPrefix(program, OptionFamily::kOwn, "");
  names.insert(names.end(), own.begin(), own.end());
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
  for (const OptionFamily family : {OptionFamily::kTorchrun, OptionFamily::kOwn}) {
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
  for (const OptionSpec& option : OptionTable()) {
    if (option.letter == letter && Offers(program, option)) {
      return &option;
    }
  }
  for (const MissingOption& option : kMissing) {
    if (option.letter == letter) {
      return NotSupported(option.name);
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

const std::vector<std::string>& MissingOptions() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const MissingOption& option : kMissing) {
      all.emplace_back(option.name);
    }
    return all;
  }();
  return names;
}

}  // namespace fsdprun
