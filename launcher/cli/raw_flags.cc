#include "launcher/cli/raw_flags.h"

#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

// A word that names a flag, and the value in the same word, if there is one.
struct FlagWord {
  const FlagSpec* flag = nullptr;
  std::optional<absl::string_view> value;
};

// `--name` or `--name=value`.
absl::StatusOr<FlagWord> ReadLongFlag(CliProgram program, absl::string_view word) {
  const absl::string_view written = word.substr(2);
  const size_t equals = written.find('=');
  FlagWord result;
  ASSIGN_OR_RETURN(result.flag, FindFlag(program, written.substr(0, equals)));
  if (equals != absl::string_view::npos) {
    result.value = written.substr(equals + 1);
  }
  return result;
}

// `-n` or `-nvalue`.
absl::StatusOr<FlagWord> ReadShortFlag(CliProgram program, absl::string_view word) {
  FlagWord result;
  result.flag = FindShortFlag(program, word[1]);
  if (const std::string unsupported = UnsupportedFlag(word.substr(1, 1));
      result.flag == nullptr && !unsupported.empty()) {
    return absl::InvalidArgumentError(unsupported);
  }
  if (result.flag == nullptr || (word.size() > 2 && !result.flag->takes_value)) {
    return absl::InvalidArgumentError(
        absl::StrCat("unknown flag ", word, "; see ", ProgramName(program), " --help"));
  }
  if (word.size() > 2) {
    result.value = word.substr(2);
  }
  return result;
}

// One flag of the command line with its value, which may be the following word. Advances `*index`
// past both.
absl::Status ReadFlag(CliProgram program, const std::vector<std::string>& args, size_t* index,
                      RawFlags* flags) {
  const std::string& word = args[*index];
  ASSIGN_OR_RETURN(const FlagWord read, absl::StartsWith(word, "--")
                                            ? ReadLongFlag(program, word)
                                            : ReadShortFlag(program, word));
  ++*index;
  const std::string source = absl::StrCat("--", read.flag->name);
  if (!read.flag->takes_value) {
    if (read.value.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrCat(source, " takes no value, but '", *read.value, "' was given"));
    }
    flags->values[read.flag->name] = {source, "1"};
    return absl::OkStatus();
  }
  if (read.value.has_value()) {
    flags->values[read.flag->name] = {source, std::string(*read.value)};
    return absl::OkStatus();
  }
  if (*index == args.size() || absl::StartsWith(args[*index], "--")) {
    return absl::InvalidArgumentError(absl::StrCat(source, " needs a value: ", read.flag->metavar));
  }
  flags->values[read.flag->name] = {source, args[(*index)++]};
  return absl::OkStatus();
}

}  // namespace

const RawValue* RawFlags::Find(const char* name) const {
  const auto it = values.find(name);
  return it == values.end() ? nullptr : &it->second;
}

bool RawFlags::IsOn(const char* name) const {
  const RawValue* value = Find(name);
  return value != nullptr && value->text != "0";
}

absl::Status InvalidValue(const RawValue& value, absl::string_view expected) {
  return absl::InvalidArgumentError(
      absl::StrCat(value.source, ": '", value.text, "' is not ", expected));
}

absl::StatusOr<RawFlags> FlagsOfArguments(CliProgram program,
                                          const std::vector<std::string>& args) {
  RawFlags flags;
  size_t index = 0;
  while (index < args.size() && args[index].size() > 1 && args[index][0] == '-') {
    if (args[index] == "--") {
      ++index;
      break;
    }
    RETURN_IF_ERROR(ReadFlag(program, args, &index, &flags));
  }
  flags.program.assign(args.begin() + static_cast<ptrdiff_t>(index), args.end());
  return flags;
}

absl::StatusOr<RawFlags> FlagsOfEnvironment(CliProgram program, const Environment& environment) {
  RawFlags flags;
  for (const FlagSpec& flag : FlagTable()) {
    const std::string variable = FlagVariableName(flag);
    const auto it = environment.find(variable);
    if (!Offers(program, flag) || it == environment.end() || it->second.empty()) {
      continue;
    }
    const RawValue value{variable, it->second};
    if (!flag.takes_value) {
      int number = 0;
      if (!absl::SimpleAtoi(value.text, &number)) {
        return InvalidValue(value, "a number (0 = off, 1 = on)");
      }
      flags.values[flag.name] = {variable, number == 0 ? "0" : "1"};
      continue;
    }
    flags.values[flag.name] = value;
  }
  return flags;
}

}  // namespace fsdprun
