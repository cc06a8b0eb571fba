#include "fsdpctl/ckpt/ckpt_options.h"

#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdpctl/ckpt/amounts.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun::ckpt {
namespace {

Request RequestOf(const RawOptions& options) {
  return options.IsOn("help")      ? Request::kHelp
         : options.IsOn("man")     ? Request::kManPage
         : options.IsOn("version") ? Request::kVersion
                                   : Request::kRun;
}

size_t OperandCount(CliProgram program) {
  switch (program) {
    case CliProgram::kCkptList:
    case CliProgram::kCkptInspect:
    case CliProgram::kCkptVerify:
      return 1;
    default:
      return 2;
  }
}

/// Options stand before, between and behind the operands.
absl::StatusOr<RawOptions> SplitWords(CliProgram program, std::vector<std::string> rest) {
  RawOptions all;
  while (true) {
    ASSIGN_OR_RETURN(RawOptions options, OptionsOfArguments(program, rest));
    for (auto& [name, value] : options.values) {
      all.values.insert_or_assign(name, std::move(value));
    }
    if (options.program.empty()) {
      return all;
    }
    all.program.push_back(options.program.front());
    rest.assign(options.program.begin() + 1, options.program.end());
  }
}

std::string TextOf(const RawOptions& options, const char* name) {
  const RawValue* value = options.Find(name);
  return value == nullptr ? std::string() : value->text;
}

absl::Status TakeValues(const RawOptions& options, CkptOptions* result) {
  if (const RawValue* format = options.Find("format")) {
    if (format->text != "hf" && format->text != "pt") {
      return InvalidValue(*format, "hf or pt");
    }
    result->format = format->text == "pt" ? ExportFormat::kTorchFile : ExportFormat::kHuggingFace;
  }
  if (const RawValue* dtype = options.Find("dtype")) {
    if (dtype->text != "float32" && dtype->text != "bfloat16" && dtype->text != "float16") {
      return InvalidValue(*dtype, "float32, bfloat16 or float16");
    }
    result->dtype = dtype->text;
  }
  if (const RawValue* size = options.Find("max-shard-size")) {
    const std::optional<int64_t> bytes = ParseBytes(size->text);
    if (!bytes.has_value()) {
      return InvalidValue(*size, "a size, such as 5GB or 512MiB");
    }
    result->shard_bytes_max = *bytes;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CkptOptions> ReadCkptOptions(CliProgram program,
                                            const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const RawOptions options, SplitWords(program, args));
  CkptOptions result{.request = RequestOf(options), .operands = options.program};
  if (result.request != Request::kRun) {
    return result;
  }
  if (result.operands.size() != OperandCount(program)) {
    return absl::InvalidArgumentError(absl::StrCat(result.operands.size(), " paths were given, ",
                                                   OperandCount(program), " are needed; see ",
                                                   ProgramName(program), " --help"));
  }
  RETURN_IF_ERROR(TakeValues(options, &result));
  result.is_json = options.IsOn("json");
  result.force = options.IsOn("force");
  result.tokenizer_dir = TextOf(options, "tokenizer-dir");
  result.config_file = TextOf(options, "config");
  result.map_file = TextOf(options, "map");
  if (program == CliProgram::kCkptConvert && result.map_file.empty()) {
    return absl::InvalidArgumentError("--map FILE is needed: how keys are renamed");
  }
  return result;
}

}  // namespace fsdprun::ckpt
