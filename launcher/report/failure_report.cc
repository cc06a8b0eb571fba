#include "launcher/report/failure_report.h"

#include <time.h>

#include <algorithm>
#include <vector>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/report/failure_hint.h"

namespace fsdprun {
namespace {

constexpr size_t kRuleWidth = 60;
constexpr size_t kTailLines = 20;
constexpr size_t kTracebackLines = 30;
constexpr size_t kOthersShown = 3;
/// torchrun's words for a worker that has left neither an error file nor a signal.
constexpr char kNoTraceback[] =
    "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html";

std::string Rule(char c) { return std::string(kRuleWidth, c).append(1, '\n'); }

std::string CountOf(int count, absl::string_view singular, absl::string_view plural) {
  return absl::StrCat(count, " ", count == 1 ? singular : plural);
}

// Negative for signals, as torchrun and Python's subprocess have it.
int ExitCodeOf(const WorkerExit& worker) {
  return worker.signal != 0 ? -worker.signal : worker.exit_code;
}

void AppendIndentedLines(absl::string_view text, size_t max_lines, std::string* out) {
  std::vector<std::string> lines;
  for (absl::string_view line : absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n')) {
    lines.push_back(StripControl(line));
  }
  const size_t skipped = lines.size() > max_lines ? lines.size() - max_lines : 0;
  if (skipped > 0) {
    absl::StrAppend(out, "    ... ", skipped, " earlier lines\n");
  }
  for (size_t i = skipped; i < lines.size(); ++i) {
    absl::StrAppend(out, "    ", lines[i], "\n");
  }
}

/// The first line stands beside the label, the others below it.
void AppendBesideLabel(absl::string_view text, std::string* out) {
  const absl::string_view stripped = absl::StripTrailingAsciiWhitespace(text);
  const size_t first = std::min(stripped.find('\n'), stripped.size());
  absl::StrAppend(out, StripControl(stripped.substr(0, first)), "\n");
  if (first < stripped.size()) {
    AppendIndentedLines(stripped.substr(first + 1), kTracebackLines, out);
  }
}

/// An error file in the plain format has no stack, and the reader gives the message for it.
void AppendTraceback(const WorkerExit& worker, std::string* out) {
  absl::StrAppend(out, "  traceback : ");
  if (worker.traceback == worker.error_message && !worker.error_message.empty()) {
    AppendBesideLabel(worker.error_message, out);
  } else if (!worker.error_message.empty() || !worker.traceback.empty()) {
    absl::StrAppend(out, StripControl(worker.error_message), "\n");
    if (!worker.traceback.empty()) {
      AppendIndentedLines(worker.traceback, kTracebackLines, out);
    }
  } else if (worker.signal != 0) {
    absl::StrAppend(out, "Signal ", worker.signal, " (", SignalName(worker.signal),
                    ") received by PID ", worker.pid, "\n");
  } else {
    absl::StrAppend(out, kNoTraceback, "\n");
  }
}

void AppendExitCode(const WorkerExit& worker, std::string* out) {
  absl::StrAppend(out, "  exitcode  : ", ExitCodeOf(worker), " (pid: ", worker.pid, ")");
  if (worker.signal != 0) {
    absl::StrAppend(out, " ", SignalName(worker.signal),
                    worker.dumped_core ? " (core dumped)" : "");
  }
  absl::StrAppend(out, "\n");
}

/// torchrun's six fields.
void AppendFields(const WorkerExit& worker, std::string* out) {
  absl::StrAppend(out, "  rank      : ", worker.rank, " (local_rank: ", worker.local_rank, ")\n");
  AppendExitCode(worker, out);
  std::string error_file = "<N/A>";
  if (!worker.error_json.empty() && !worker.log_path.empty()) {
    error_file = worker.log_path.substr(0, worker.log_path.rfind('/') + 1) + "error.json";
  }
  absl::StrAppend(out, "  error_file: ", error_file, "\n");
  AppendTraceback(worker, out);
}

void AppendLastWords(const WorkerExit& worker, std::string* out) {
  if (worker.last_step >= 0) {
    absl::StrAppend(out, "  last step : ", worker.last_step, "\n");
  }
  if (!worker.stderr_tail.empty()) {
    const size_t count = std::min(worker.stderr_tail.size(), kTailLines);
    absl::StrAppend(out, "  last ", CountOf(static_cast<int>(count), "line", "lines"),
                    " of standard error:\n");
    for (size_t i = worker.stderr_tail.size() - count; i < worker.stderr_tail.size(); ++i) {
      absl::StrAppend(out, "    | ", StripControl(worker.stderr_tail[i]), "\n");
    }
  }
}

void AppendWhatWasDone(const JobOutcome& outcome, std::string* out) {
  const FailureReport& report = *outcome.failure;
  absl::StrAppend(out, "Already done: ");
  if (report.collateral > 0) {
    absl::StrAppend(out, CountOf(report.collateral, "other worker was", "other workers were"),
                    " stopped; ");
  }
  if (report.other_failures > 0 && report.root.kind != CauseKind::kJoinTimeout) {
    absl::StrAppend(out, CountOf(report.other_failures, "later failure is", "later failures are"),
                    " considered a consequence; ");
  }
  absl::StrAppend(out, outcome.restarts_used, " of ",
                  CountOf(outcome.max_restarts, "restart", "restarts"),
                  " used (--max-restarts).\n");
  for (const std::string& sentence : outcome.left_out) {
    absl::StrAppend(out, "Left out    : ", StripControl(sentence), ".\n");
  }
}

std::string HostOf(const Failure& failure) {
  if (failure.node_name.empty()) {
    return failure.node_address.empty() ? "<unknown>" : failure.node_address;
  }
  return failure.node_address.empty()
             ? failure.node_name
             : absl::StrCat(failure.node_name, " (", failure.node_address, ")");
}

/// What the error file says, in whatever clock its program has, comes first.
std::string TimeOf(const WorkerExit& worker) {
  if (worker.error_timestamp_s.has_value()) {
    return FormatTime(*worker.error_timestamp_s);
  }
  return worker.exited_unix_ns > 0 ? FormatTime(worker.exited_unix_ns / 1'000'000'000) : "";
}

enum class Detail { kFields, kFieldsAndLastWords };

void AppendFailure(size_t index, const Failure& failure, Detail detail, std::string* out) {
  absl::StrAppend(out, "[", index, "]:\n");
  const std::string time = failure.worker.has_value() ? TimeOf(*failure.worker) : "";
  if (!time.empty()) {
    absl::StrAppend(out, "  time      : ", time, "\n");
  }
  absl::StrAppend(out, "  host      : ", HostOf(failure), "\n");
  if (!failure.worker.has_value()) {
    absl::StrAppend(out, "  what      : ", StripControl(failure.what), "\n");
    return;
  }
  AppendFields(*failure.worker, out);
  if (detail == Detail::kFieldsAndLastWords) {
    AppendLastWords(*failure.worker, out);
  }
  if (!failure.worker->log_path.empty()) {
    absl::StrAppend(out, "  log       : ", failure.worker->log_path, "\n");
  }
}

void AppendOthers(const FailureReport& report, std::string* out) {
  absl::StrAppend(
      out, report.root.kind == CauseKind::kJoinTimeout ? "Failures before that:\n" : "Failures:\n");
  const size_t shown = std::min(report.others.size(), kOthersShown);
  for (size_t i = 0; i < shown; ++i) {
    AppendFailure(i + 1, report.others[i], Detail::kFields, out);
  }
  const int left = report.other_failures - static_cast<int>(shown);
  if (left > 0) {
    absl::StrAppend(out, "  and ", left, " more", "\n");
  } else if (shown == 0) {
    absl::StrAppend(out, "  <NO_OTHER_FAILURES>\n");
  }
}

// Scripts written for torchrun look for these names.
std::string Heading(CauseKind kind, const std::string& program) {
  return kind == CauseKind::kJoinTimeout
             ? absl::StrCat(
                   "fsdprun: torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError: ",
                   "too few nodes for ", program, "\n")
             : absl::StrCat("fsdprun: torch.distributed.elastic.multiprocessing.errors.",
                            "ChildFailedError: ", program, " failed\n");
}

}  // namespace

std::string StripControl(absl::string_view text) {
  std::string clean;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c == 0x1b) {
      // CSI sequences end with a byte in @..~; of other escapes the next byte is dropped.
      if (i + 1 < text.size() && text[i + 1] == '[') {
        i += 2;
        while (i < text.size() && (text[i] < '@' || text[i] > '~')) {
          ++i;
        }
      } else {
        ++i;
      }
    } else if (c == '\t' || c == '\n') {
      clean.push_back(' ');
    } else if (c >= 0x20 && c != 0x7f) {
      clean.push_back(static_cast<char>(c));
    }
  }
  return clean;
}

std::string FormatTime(int64_t unix_s) {
  const time_t seconds = unix_s;
  tm parts{};
  if (::localtime_r(&seconds, &parts) == nullptr) {
    return absl::StrCat(unix_s, " s since 1970");  // The year has too many digits.
  }
  char buffer[64];
  return std::string(buffer, ::strftime(buffer, sizeof(buffer), "%Y-%m-%d_%H:%M:%S", &parts));
}

std::string FormatFailureReport(const JobOutcome& outcome, const ReportContext& context) {
  if (!outcome.failure.has_value()) {
    return "";
  }
  const Failure& root = outcome.failure->root;
  std::string text = absl::StrCat(Heading(root.kind, context.program), Rule('='), context.program,
                                  " FAILED\n", Rule('-'));
  absl::StrAppend(&text, "Root Cause (first observed failure):\n");
  AppendFailure(0, root, Detail::kFieldsAndLastWords, &text);
  absl::StrAppend(&text, Rule('-'));
  AppendOthers(*outcome.failure, &text);
  absl::StrAppend(&text, Rule('-'));
  AppendWhatWasDone(outcome, &text);
  const std::string hint = FailureHint(root, outcome.store);
  absl::StrAppend(
      &text, "What to do  : ", hint.empty() ? "read the worker's log named above" : hint, ".\n");
  absl::StrAppend(&text, Rule('='));
  return text;
}

std::string FormatOutcomeLine(const JobOutcome& outcome) {
  switch (outcome.kind) {
    case OutcomeKind::kSucceeded:
      return "the job succeeded";
    case OutcomeKind::kStoppedBySignal:
      return absl::StrCat("the job was ended by ", SignalName(outcome.signal),
                          outcome.grace_cut_short
                              ? "; the workers that were still running were killed at the second "
                                "signal"
                              : "");
    case OutcomeKind::kFailed:
      return absl::StrCat("the job failed: ", outcome.reason);
  }
  return "";
}

namespace {

std::string DumpErrorJson(const nlohmann::json& message) {
  return nlohmann::json({{"message", message}})
      .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

nlohmann::json WorkerErrorJson(const WorkerExit& worker, const std::string& what) {
  const nlohmann::json original =
      nlohmann::json::parse(worker.error_json, nullptr, /*allow_exceptions=*/false);
  if (original.is_object() && original.contains("message") && original["message"].is_object()) {
    return original["message"];
  }
  const int64_t seconds = worker.error_timestamp_s.value_or(worker.exited_unix_ns / 1'000'000'000);
  std::string message = what;
  if (!worker.error_message.empty()) {
    message = worker.error_message;
  } else if (worker.signal != 0) {
    message = absl::StrCat("Signal ", worker.signal, " (", SignalName(worker.signal),
                           ") received by PID ", worker.pid);
  }
  return {
      {"message", message},
      {"extraInfo", {{"py_callstack", worker.traceback}, {"timestamp", absl::StrCat(seconds)}}}};
}

}  // namespace

std::string LauncherErrorJson(const JobOutcome& outcome) {
  if (!outcome.failure.has_value()) {
    return "";
  }
  const Failure& root = outcome.failure->root;
  if (!root.worker.has_value()) {
    return LauncherErrorJson(root.what);
  }
  nlohmann::json message = WorkerErrorJson(*root.worker, root.what);
  message["errorCode"] = ExitCodeOf(*root.worker);
  return DumpErrorJson(message);
}

std::string LauncherErrorJson(const std::string& reason) {
  return DumpErrorJson({{"message", reason},
                        {"extraInfo", {{"py_callstack", ""}, {"timestamp", "0"}}},
                        {"errorCode", 1}});
}

}  // namespace fsdprun
