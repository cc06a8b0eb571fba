#include "launcher/cli/raw_options.h"

#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "launcher/cli/option_lookup.h"

namespace fsdprun {
namespace {

/// Reads the words up to the program, one after the other.
class Reader {
 public:
  Reader(CliProgram program, const std::vector<std::string>& args)
      : program_(program), args_(args) {}

  absl::StatusOr<RawOptions> Read() {
    while (next_ < args_.size() && args_[next_] != "--" && LooksLikeOption(args_[next_])) {
      const std::string& word = args_[next_++];
      RETURN_IF_ERROR(absl::StartsWith(word, "--") ? ReadLong(word) : ReadLetters(word));
    }
    if (next_ < args_.size() && args_[next_] == "--") {
      ++next_;
    }
    options_.program.assign(args_.begin() + static_cast<ptrdiff_t>(next_), args_.end());
    return std::move(options_);
  }

 private:
  /// `--name` or `--name=value`.
  absl::Status ReadLong(absl::string_view word) {
    const absl::string_view written = word.substr(2);
    const size_t equals = written.find('=');
    ASSIGN_OR_RETURN(const OptionSpec* option, FindOption(program_, written.substr(0, equals)));
    std::optional<absl::string_view> value;
    if (equals != absl::string_view::npos) {
      value = written.substr(equals + 1);
    }
    return Set(*option, value);
  }

  /// `-n`, `-nvalue`, `-n=value`, and switches in one word: `-mn`.
  absl::Status ReadLetters(absl::string_view word) {
    absl::string_view rest = word.substr(1);
    while (!rest.empty()) {
      ASSIGN_OR_RETURN(const OptionSpec* option, FindLetter(program_, rest[0]));
      rest.remove_prefix(1);
      std::optional<absl::string_view> value;
      if (absl::StartsWith(rest, "=") || (option->takes_value() && !rest.empty())) {
        value = rest.substr(rest[0] == '=' ? 1 : 0);
        rest = {};
      }
      RETURN_IF_ERROR(Set(*option, value));
    }
    return absl::OkStatus();
  }

  /// The value may be the next word.
  absl::Status Set(const OptionSpec& option, std::optional<absl::string_view> value) {
    const std::string source = absl::StrCat("--", option.name);
    if (!option.takes_value() && value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, " takes no value, but '", *value, "' was given"));
    }
    if (option.takes_value() && !value.has_value()) {
      if (next_ == args_.size() || args_[next_] == "--" || LooksLikeOption(args_[next_])) {
        return absl::InvalidArgumentError(absl::StrCat(source, " needs a value: ", option.metavar));
      }
      value = args_[next_++];
    }
    options_.values[option.name] = {source, option.takes_value() ? std::string(*value) : "1"};
    return absl::OkStatus();
  }

  const CliProgram program_;
  const std::vector<std::string>& args_;
  size_t next_ = 0;
  RawOptions options_;
};

/// As Python's int() and float() do.
bool IsNumber(ValueKind kind, absl::string_view text) {
  text = absl::StripAsciiWhitespace(text);
  int64_t integer = 0;
  double number = 0;
  return kind == ValueKind::kNumber ? absl::SimpleAtod(text, &number)
                                    : absl::SimpleAtoi(text, &integer);
}

}  // namespace

const RawValue* RawOptions::Find(const char* name) const {
  const auto it = values.find(name);
  return it == values.end() ? nullptr : &it->second;
}

std::string RawOptions::TextOf(const char* name) const {
  const RawValue* value = Find(name);
  return value == nullptr ? std::string() : value->text;
}

bool RawOptions::IsOn(const char* name) const {
  const RawValue* value = Find(name);
  int number = 0;
  return value != nullptr && absl::SimpleAtoi(value->text, &number) && number != 0;
}

absl::Status InvalidValue(const RawValue& value, absl::string_view expected) {
  return absl::OutOfRangeError(
      absl::StrCat(value.source, ": '", value.text, "' is not ", expected));
}

absl::StatusOr<RawOptions> OptionsOfArguments(CliProgram program,
                                              const std::vector<std::string>& args) {
  return Reader(program, args).Read();
}

absl::StatusOr<RawOptions> OptionsAroundOperands(CliProgram program,
                                                 std::vector<std::string> args) {
  RawOptions all;
  while (true) {
    ASSIGN_OR_RETURN(RawOptions options, OptionsOfArguments(program, args));
    for (auto& [name, value] : options.values) {
      all.values.insert_or_assign(name, std::move(value));
    }
    if (options.program.empty()) {
      return all;
    }
    all.program.push_back(std::move(options.program.front()));
    args.assign(options.program.begin() + 1, options.program.end());
  }
}

RawOptions OptionsOfEnvironment(CliProgram program, const Environment& environment) {
  RawOptions options;
  for (const OptionSpec& option : OptionsOf(program)) {
    for (const std::string& variable : VariablesOf(option)) {
      const auto it = environment.find(variable);
      if (it != environment.end() && !it->second.empty()) {
        options.values.try_emplace(option.name, RawValue{variable, it->second});
      }
    }
  }
  return options;
}

absl::Status CheckNumbers(const RawOptions& options) {
  absl::Status bad_switch;
  for (const OptionSpec& option : OptionTable()) {
    const RawValue* value = options.Find(option.name);
    if (value == nullptr || option.value == ValueKind::kText ||
        IsNumber(option.value, value->text)) {
      continue;
    }
    if (option.value == ValueKind::kSwitch) {
      bad_switch.Update(InvalidValue(*value, "a number (0 = off, 1 = on)"));
      continue;
    }
    return absl::InvalidArgumentError(
        absl::StrCat(value->source, ": '", value->text, "' is not a ",
                     option.value == ValueKind::kInteger ? "whole number" : "number"));
  }
  return bad_switch;
}

}  // namespace fsdprun
