#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "proto/cluster/types.h"

namespace fsdprun {

/// Everything the report needs beside the outcome.
struct ReportContext {
  /// The script, module or command as the user wrote it.
  std::string program;
};

/// The report printed at the end of a failed job, with torchrun's labels: the root cause first,
/// then up to three other failures in the same fields, what was already done and what to do next.
/// Empty for an outcome without a failure. Times are printed in the process's time zone. Pure
/// otherwise.
std::string FormatFailureReport(const JobOutcome& outcome, const ReportContext& context);

/// One sentence for nodes that do not print the report, and for jobs that end without one.
std::string FormatOutcomeLine(const JobOutcome& outcome);

/// What goes into the launcher's own TORCHELASTIC_ERROR_FILE: the root cause's JSON with
/// `errorCode` inside `message`. A worker without an error file gets one made from its exit. Empty
/// without a failure.
std::string LauncherErrorJson(const JobOutcome& outcome);
/// The same for a node that knows only why the job has ended.
std::string LauncherErrorJson(const std::string& reason);

/// `text` without control characters and escape sequences (tabs and newlines become blanks).
std::string StripControl(absl::string_view text);

/// `2026-01-31_08:15:00` in local time.
std::string FormatTime(int64_t unix_s);

}  // namespace fsdprun
