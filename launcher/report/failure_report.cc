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

std::string Rule(char c) { return std::string(kRuleWidth, c) + "\n"; }

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

void AppendTraceback(const WorkerExit& worker, std::string* out) {
  if (!worker.error_message.empty() || !worker.traceback.empty()) {
    absl::StrAppend(out, "  traceback : ", StripControl(worker.error_message), "\n");
    if (!worker.traceback.empty()) {
      AppendIndentedLines(worker.traceback, kTracebackLines, out);
    }
  } else if (worker.signal != 0) {
    absl::StrAppend(out, "  traceback : Signal ", worker.signal, " (", SignalName(worker.signal),
                    ") received by PID ", worker.pid, "\n");
  } else {
    absl::StrAppend(out, "  traceback : <N/A>; the worker wrote no error file\n");
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

void AppendWorker(const WorkerExit& worker, std::string* out) {
  absl::StrAppend(out, "  rank      : ", worker.rank, " (local_rank: ", worker.local_rank, ")\n");
  AppendExitCode(worker, out);
  std::string error_file = "<N/A>";
  if (!worker.error_json.empty() && !worker.log_path.empty()) {
    error_file = worker.log_path.substr(0, worker.log_path.rfind('/') + 1) + "error.json";
  }
  absl::StrAppend(out, "  error_file: ", error_file, "\n");
  AppendTraceback(worker, out);
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
  if (!worker.log_path.empty()) {
    absl::StrAppend(out, "  log       : ", worker.log_path, "\n");
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
}

std::string HostOf(const Failure& failure) {
  if (failure.node_name.empty()) {
    return failure.node_address.empty() ? "<unknown>" : failure.node_address;
  }
  return failure.node_address.empty()
             ? failure.node_name
             : absl::StrCat(failure.node_name, " (", failure.node_address, ")");
}

void AppendOthers(const FailureReport& report, std::string* out) {
  const size_t shown = std::min(report.others.size(), kOthersShown);
  if (shown == 0) {
    return;
  }
  absl::StrAppend(out,
                  report.root.kind == CauseKind::kJoinTimeout ? "Before that" : "Other failures",
                  " (", shown, " of ", report.other_failures, "):\n");
  for (size_t i = 0; i < shown; ++i) {
    const Failure& other = report.others[i];
    absl::StrAppend(out, "[", i + 1, "]: ", StripControl(other.what), " (host: ", HostOf(other));
    if (other.worker.has_value() && !other.worker->log_path.empty()) {
      absl::StrAppend(out, ", log: ", other.worker->log_path);
    }
    absl::StrAppend(out, ")\n");
    if (other.worker.has_value() && !other.worker->error_message.empty()) {
      absl::StrAppend(out, "  ", StripControl(other.worker->error_message), "\n");
    }
  }
}

// Scripts written for torchrun look for these error names.
std::string Heading(CauseKind kind, const std::string& program) {
  return kind == CauseKind::kJoinTimeout
             ? absl::StrCat("fsdprun: RendezvousTimeoutError: too few nodes for ", program, "\n")
             : absl::StrCat("fsdprun: ChildFailedError: ", program, " failed\n");
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

std::string FormatTime(int64_t unix_ns) {
  const time_t seconds = unix_ns / 1'000'000'000;
  tm parts{};
  ::localtime_r(&seconds, &parts);
  char buffer[32];
  return std::string(buffer, ::strftime(buffer, sizeof(buffer), "%Y-%m-%d_%H:%M:%S", &parts));
}

std::string FormatFailureReport(const JobOutcome& outcome, const ReportContext& context) {
  if (!outcome.failure.has_value()) {
    return "";
  }
  const Failure& root = outcome.failure->root;
  std::string text = absl::StrCat(Heading(root.kind, context.program), Rule('='), context.program,
                                  " FAILED\n", Rule('-'));
  absl::StrAppend(&text, "Root Cause (first observed failure):\n[0]:\n");
  if (root.worker.has_value() && root.worker->exited_unix_ns > 0) {
    absl::StrAppend(&text, "  time      : ", FormatTime(root.worker->exited_unix_ns), "\n");
  }
  absl::StrAppend(&text, "  host      : ", HostOf(root), "\n");
  if (root.worker.has_value()) {
    AppendWorker(*root.worker, &text);
  } else {
    absl::StrAppend(&text, "  what      : ", StripControl(root.what), "\n");
  }
  absl::StrAppend(&text, Rule('-'));
  AppendOthers(*outcome.failure, &text);
  AppendWhatWasDone(outcome, &text);
  const std::string hint = FailureHint(root);
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
      return absl::StrCat("the job was ended by ", SignalName(outcome.signal));
    case OutcomeKind::kFailed:
      return absl::StrCat("the job failed: ", outcome.reason);
  }
  return "";
}

std::string LauncherErrorJson(const JobOutcome& outcome) {
  if (!outcome.failure.has_value()) {
    return "";
  }
  const Failure& root = outcome.failure->root;
  nlohmann::json message = {{"message", root.what},
                            {"extraInfo", {{"py_callstack", ""}, {"timestamp", "0"}}}};
  int exit_code = 1;
  if (root.worker.has_value()) {
    exit_code = ExitCodeOf(*root.worker);
    message["extraInfo"]["timestamp"] = absl::StrCat(root.worker->exited_unix_ns / 1'000'000'000);
    if (!root.worker->error_message.empty()) {
      message["message"] = root.worker->error_message;
      message["extraInfo"]["py_callstack"] = root.worker->traceback;
    } else if (root.worker->signal != 0) {
      message["message"] =
          absl::StrCat("Signal ", root.worker->signal, " (", SignalName(root.worker->signal),
                       ") received by PID ", root.worker->pid);
    }
    const nlohmann::json original =
        nlohmann::json::parse(root.worker->error_json, nullptr, /*allow_exceptions=*/false);
    if (original.is_object() && original.contains("message") && original["message"].is_object()) {
      message = original["message"];
    }
  }
  message["errorCode"] = exit_code;
  return nlohmann::json({{"message", message}})
      .dump(-1, ' ', /*ensure_ascii=*/false, nlohmann::json::error_handler_t::replace);
}

}  // namespace fsdprun
