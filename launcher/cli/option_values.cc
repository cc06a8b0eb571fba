#include "launcher/cli/option_values.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/cli/nearest.h"
#include "proto/cluster/types.h"

namespace fsdprun {

Request TextRequest(const RawOptions& options) {
  return options.IsOn("help")      ? Request::kHelp
         : options.IsOn("man")     ? Request::kManPage
         : options.IsOn("version") ? Request::kVersion
                                   : Request::kRun;
}

absl::StatusOr<int> ToInt(const RawValue& value, int minimum, absl::string_view expected) {
  int number = 0;
  if (!absl::SimpleAtoi(value.text, &number) || number < minimum) {
    return InvalidValue(value, expected);
  }
  return number;
}

absl::StatusOr<NodeNumbers> ToNodeNumbers(const RawValue& value) {
  const std::vector<std::string> parts = absl::StrSplit(value.text, ':');
  NodeNumbers numbers;
  const bool parsed = parts.size() <= 2 && absl::SimpleAtoi(parts.front(), &numbers.min) &&
                      absl::SimpleAtoi(parts.back(), &numbers.max);
  if (!parsed || numbers.min < 1 || numbers.max < numbers.min || numbers.max > kMaxNodes) {
    return InvalidValue(value, absl::StrCat("N or MIN:MAX with 1 <= MIN <= MAX <= ", kMaxNodes));
  }
  return numbers;
}

absl::StatusOr<uint16_t> ToPort(const RawValue& value) {
  int number = 0;
  if (!absl::SimpleAtoi(value.text, &number) || number < 0 || number > 65535) {
    return InvalidValue(value, "a port (0 to 65535)");
  }
  return static_cast<uint16_t>(number);
}

absl::StatusOr<std::chrono::milliseconds> ToSeconds(const RawValue& value, bool zero_allowed) {
  double seconds = 0;
  const bool is_number = absl::SimpleAtod(value.text, &seconds) && seconds <= 1e8;
  if (!is_number || !(zero_allowed ? seconds >= 0 : seconds > 0)) {
    return InvalidValue(
        value, zero_allowed ? "a number of seconds, 0 or more" : "a number of seconds above 0");
  }
  return std::chrono::milliseconds(static_cast<int64_t>(seconds * 1000));
}

absl::StatusOr<bool> ToBool(const RawValue& value) {
  const std::string text = absl::AsciiStrToLower(value.text);
  for (const char* word : {"1", "true", "t", "yes", "y"}) {
    if (text == word) {
      return true;
    }
  }
  for (const char* word : {"0", "false", "f", "no", "n"}) {
    if (text == word) {
      return false;
    }
  }
  return InvalidValue(value, "yes or no (1, true, t, y or 0, false, f, n)");
}

absl::StatusOr<std::string> ToWord(const RawValue& value, const std::vector<std::string>& words) {
  if (std::find(words.begin(), words.end(), value.text) != words.end()) {
    return value.text;
  }
  std::string expected = words.back();
  if (words.size() > 1) {
    expected = absl::StrCat(absl::StrJoin(words.begin(), words.end() - 1, ", "), " or ", expected);
  }
  if (const std::string nearest = Nearest(words, value.text); !nearest.empty()) {
    absl::StrAppend(&expected, "; did you mean ", nearest, "?");
  }
  return InvalidValue(value, expected);
}

absl::StatusOr<StreamSets> ToStreamSets(const RawValue& value) {
  constexpr char kExpected[] =
      "0, 1 (standard output), 2 (standard error), 3 (both) or LOCAL_RANK:STREAMS,...";
  const auto streams = [](absl::string_view text) -> std::optional<StreamSet> {
    return text.size() == 1 && text[0] >= '0' && text[0] <= '3' ? std::optional(text[0] - '0')
                                                                : std::nullopt;
  };
  StreamSets sets;
  if (const std::optional<StreamSet> all = streams(value.text)) {
    sets.of_all = *all;
    return sets;
  }
  for (const absl::string_view item : absl::StrSplit(value.text, ',')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(item, ':');
    const std::optional<StreamSet> set = streams(parts.back());
    int local_rank = 0;
    const bool is_rank = parts.size() == 2 && !parts[0].empty() &&
                         parts[0].find_first_not_of("0123456789") == absl::string_view::npos &&
                         absl::SimpleAtoi(parts[0], &local_rank);
    if (!is_rank || !set.has_value()) {
      return InvalidValue(value, kExpected);
    }
    sets.of_rank[local_rank] = *set;
  }
  return sets;
}

absl::StatusOr<std::optional<std::set<int>>> ToLocalRanks(const RawValue& value) {
  if (value.text.empty()) {
    return std::nullopt;
  }
  std::set<int> ranks;
  for (const absl::string_view item : absl::StrSplit(value.text, ',')) {
    int rank = 0;
    if (!absl::SimpleAtoi(item, &rank)) {
      return InvalidValue(value, "a list of local ranks such as 0,2");
    }
    ranks.insert(rank);
  }
  return std::optional(std::move(ranks));
}

std::vector<std::string> ToTexts(absl::string_view text) {
  std::vector<std::string> texts;
  std::string part;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i + 1 < text.size() && text[i] == ',' && text[i + 1] == ',') {
      part.push_back(',');
      ++i;
    } else if (i < text.size() && text[i] != ',') {
      part.push_back(text[i]);
    } else if (!part.empty()) {
      texts.push_back(std::exchange(part, std::string()));
    }
  }
  return texts;
}

namespace {

/// 0 if there is none. As Python's module signal has them: some with two names.
int SignalOfName(absl::string_view name) {
  for (const auto& [other, signal] :
       {std::pair("SIGIO", SIGIO), std::pair("SIGIOT", SIGIOT), std::pair("SIGCLD", SIGCHLD),
        std::pair("SIGRTMIN", SIGRTMIN), std::pair("SIGRTMAX", SIGRTMAX)}) {
    if (name == other) {
      return signal;
    }
  }
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    const char* abbreviation = ::sigabbrev_np(signal);
    if (abbreviation != nullptr && name == absl::StrCat("SIG", abbreviation)) {
      return signal;
    }
  }
  return 0;
}

}  // namespace

SignalList ParseSignals(absl::string_view text) {
  SignalList list;
  for (const absl::string_view item : absl::StrSplit(text, ',')) {
    const std::string name(absl::StripAsciiWhitespace(item));
    const int found = SignalOfName(name);
    if (found == 0 || found == SIGKILL || found == SIGSTOP) {
      list.unknown.push_back(name);
    } else {
      list.signals.push_back(found);
    }
  }
  return list;
}

bool IsHost(absl::string_view host) {
  if (host.empty() || host.find_first_of("[]") != absl::string_view::npos) {
    return false;
  }
  // Only an IPv6 address has colons; its zone is any text.
  const absl::string_view address = host.substr(0, host.find('%'));
  return !absl::StrContains(host, ':') || std::all_of(address.begin(), address.end(), [](char c) {
    return absl::ascii_isxdigit(static_cast<unsigned char>(c)) || c == ':' || c == '.';
  });
}

absl::StatusOr<HostPort> ParseHostPort(absl::string_view text, uint16_t default_port) {
  absl::string_view host = text;
  absl::string_view port;
  bool has_port = false;
  if (absl::ConsumePrefix(&host, "[")) {
    const size_t close = host.find(']');
    if (close == absl::string_view::npos) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' lacks a closing bracket"));
    }
    port = host.substr(close + 1);
    host = host.substr(0, close);
    has_port = absl::ConsumePrefix(&port, ":");
    if (!has_port && !port.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("'", text, "' has text after the bracket"));
    }
  } else if (const size_t colon = text.rfind(':');
             colon != absl::string_view::npos && text.find(':') == colon) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  }
  int number = default_port;
  // As torchrun reads one: at most five digits, no sign and no blanks.
  const bool is_digits =
      port.size() <= 5 && std::all_of(port.begin(), port.end(), absl::ascii_isdigit);
  const bool port_is_good =
      !has_port || (is_digits && absl::SimpleAtoi(port, &number) && number <= 65535);
  if (!IsHost(host) || !port_is_good) {
    return absl::InvalidArgumentError(absl::StrCat("'", text, "' is not HOST:PORT"));
  }
  return HostPort{std::string(host), static_cast<uint16_t>(number)};
}

}  // namespace fsdprun
