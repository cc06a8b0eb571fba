#include "fsdpctl/ckpt/ckpt_options.h"

#include <optional>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "fsdpctl/ckpt/amounts.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun::ckpt {
namespace {

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

absl::Status TakeValues(const RawOptions& options, CkptOptions* result) {
  if (const RawValue* format = options.Find("format")) {
    if (format->text != "hf" && format->text != "pt" && format->text != "adapter") {
      return InvalidValue(*format, "hf, pt or adapter");
    }
    result->format = format->text == "pt"        ? ExportFormat::kTorchFile
                     : format->text == "adapter" ? ExportFormat::kAdapter
                                                 : ExportFormat::kHuggingFace;
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

/// A .pt file has weights alone, and an adapter is one file beside its own configuration.
absl::Status CheckFormat(const RawOptions& options, ExportFormat format) {
  for (const char* name : {"config", "max-shard-size", "tokenizer-dir"}) {
    if (format != ExportFormat::kHuggingFace && options.Find(name) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("--", name, " has no meaning with --format ",
                       format == ExportFormat::kTorchFile ? "pt" : "adapter",
                       ", which writes one file of weights alone; leave one of them out"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CkptOptions> ReadCkptOptions(CliProgram program,
                                            const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const RawOptions options, OptionsAroundOperands(program, args));
  CkptOptions result{.request = TextRequest(options), .operands = options.program};
  if (result.request != Request::kRun) {
    return result;
  }
  if (result.operands.size() != OperandCount(program)) {
    return absl::InvalidArgumentError(absl::StrCat(result.operands.size(), " paths were given, ",
                                                   OperandCount(program), " are needed; see ",
                                                   ProgramName(program), " --help"));
  }
  RETURN_IF_ERROR(TakeValues(options, &result));
  RETURN_IF_ERROR(CheckFormat(options, result.format));
  result.is_json = options.IsOn("json");
  result.force = options.IsOn("force");
  result.tokenizer_dir = options.TextOf("tokenizer-dir");
  result.config_file = options.TextOf("config");
  result.base = options.TextOf("base");
  result.map_file = options.TextOf("map");
  if (program == CliProgram::kCkptConvert && result.map_file.empty()) {
    return absl::InvalidArgumentError("--map MAP is needed: how keys are renamed");
  }
  return result;
}

}  // namespace fsdprun::ckpt
