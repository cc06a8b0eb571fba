// fsdpctl ckpt.

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor_limit.h"
#include "formats/files/interruption.h"
#include "fsdpctl/ckpt/ckpt_options.h"
#include "fsdpctl/ckpt/convert.h"
#include "fsdpctl/ckpt/diff.h"
#include "fsdpctl/ckpt/export.h"
#include "fsdpctl/ckpt/inspect.h"
#include "fsdpctl/ckpt/list.h"
#include "fsdpctl/ckpt/report.h"
#include "fsdpctl/ckpt/verify.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/commands.h"

namespace fsdprun {
namespace {

using ckpt::CkptOptions;
using ckpt::Report;

/// Of diff, as diff(1) has it: 1 is for differences.
constexpr int kTrouble = 2;

/// Prints the report, and returns the exit code. The libraries of files throw; nothing else here
/// does.
int Print(CliProgram program, const CkptOptions& options,
          const std::function<Report(const CkptOptions&)>& make) {
  // A data file stays open for each rank that wrote one.
  RaiseDescriptorLimit();
  const Interruption interruption;
  try {
    const Report report = make(options);
    // A name of a foreign file need not be UTF-8.
    Show(options.is_json
             ? absl::StrCat(report.json.dump(2, ' ', false, Json::error_handler_t::replace), "\n")
             : report.text);
    return report.is_good ? 0 : kValueError;
  } catch (const std::exception& error) {
    const int code = Fail(ProgramName(program), absl::OutOfRangeError(error.what()));
    Interruption::EndIfInterrupted();
    return program == CliProgram::kCkptDiff ? kTrouble : code;
  }
}

int Run(CliProgram program, const ControlContext& context,
        const std::function<Report(const CkptOptions&)>& make) {
  const absl::StatusOr<CkptOptions> options = ckpt::ReadCkptOptions(program, context.args);
  if (!options.ok()) {
    return Fail(ProgramName(program), options.status());
  }
  const std::optional<int> shown = ShowText(program, options->request);
  return shown.has_value() ? *shown : Print(program, *options, make);
}

int64_t SecondsSince1970() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

}  // namespace

int CkptList(const ControlContext& context) {
  return Run(CliProgram::kCkptList, context, [](const CkptOptions& options) {
    return ckpt::ListCheckpoints(options.operands[0], SecondsSince1970());
  });
}

int CkptInspect(const ControlContext& context) {
  return Run(CliProgram::kCkptInspect, context, [](const CkptOptions& options) {
    return ckpt::InspectCheckpoint(options.operands[0]);
  });
}

int CkptVerify(const ControlContext& context) {
  return Run(CliProgram::kCkptVerify, context, [](const CkptOptions& options) {
    return ckpt::VerifyCheckpoint(options.operands[0]);
  });
}

int CkptDiff(const ControlContext& context) {
  return Run(CliProgram::kCkptDiff, context, [](const CkptOptions& options) {
    return ckpt::DiffCheckpoints(options.operands[0], options.operands[1]);
  });
}

int CkptExport(const ControlContext& context) {
  return Run(CliProgram::kCkptExport, context, ckpt::ExportCheckpoint);
}

int CkptImport(const ControlContext& context) {
  return Run(CliProgram::kCkptImport, context, ckpt::ImportModel);
}

int CkptConvert(const ControlContext& context) {
  return Run(CliProgram::kCkptConvert, context, ckpt::ConvertCheckpoint);
}

}  // namespace fsdprun
