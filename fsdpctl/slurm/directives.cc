#include "fsdpctl/slurm/directives.h"

#include <algorithm>
#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "fsdpctl/slurm/shell_quote.h"
#include "launcher/cli/option_values.h"
#include "launcher/slurm/requeue.h"

namespace fsdprun {
namespace {

/// Time for a checkpoint, and how much of a short job's time that is at most.
constexpr int64_t kNoticeSeconds = 120;
constexpr int64_t kNoticeDivisor = 4;
/// Slurm may send a signal so long before the time that was asked for.
constexpr int64_t kEarlySeconds = 60;
/// sbatch's options that are made of several here.
constexpr const char* kMadeHere[] = {"nodes",   "output",    "job-name",
                                     "no-kill", "open-mode", "signal"};

/// What sbatch would say of a value, before the job is made.
absl::Status CheckSbatchValue(const OptionSpec& option, const RawValue& value) {
  const absl::string_view name = option.name;
  if (option.takes_value() && (value.text.empty() || !IsDirectiveValue(value.text))) {
    return InvalidValue(value, "a value that fits into a line of a batch file");
  }
  if (option.is_choice) {
    return ToWord(value, absl::StrSplit(option.words, ' ')).status();
  }
  if (option.value == ValueKind::kInteger) {
    return ToInt(value, 1, "a number of 1 or more").status();
  }
  if (name == "nodes") {
    return ToNodeRange(value).status();
  }
  if (name == "time" && !IsTimeLimit(value.text)) {
    return InvalidValue(value, "a time limit: MINUTES, HH:MM:SS, DAYS-HH:MM:SS or UNLIMITED");
  }
  if (name == "signal" && !IsSignalRequest(value.text)) {
    return InvalidValue(value, "a signal for sbatch: B:USR1@120, USR2@60");
  }
  return absl::OkStatus();
}

/// Of --time; unset if there is none, or its default is the partition's.
std::optional<int64_t> LimitOf(const RawOptions& options) {
  const RawValue* time = options.Find("time");
  return time == nullptr ? std::nullopt : TimeLimitSeconds(time->text);
}

std::string RequeueSignal(std::optional<int64_t> limit) {
  return absl::StrCat("B:USR1@",
                      std::min(kNoticeSeconds, limit.value_or(INT64_MAX) / kNoticeDivisor));
}

/// Whether it asks for another run of a job; others only end it.
bool AsksForRequeue(const std::string& request, RequeueMode mode) {
  const auto asks = [mode](int signal) {
    return IsNotice(signal) || (signal == SIGTERM && mode == RequeueMode::kAlways);
  };
  std::string name = absl::AsciiStrToUpper(request.substr(0, request.find('@')));
  name.erase(0, name.find(':') + 1);
  int number = 0;
  if (absl::SimpleAtoi(name, &number)) {
    return asks(number);
  }
  const SignalList named =
      ParseSignals(absl::StartsWith(name, "SIG") ? name : absl::StrCat("SIG", name));
  return std::any_of(named.signals.begin(), named.signals.end(), asks);
}

/// A job that is told to end when it begins would be requeued each time, and never get anywhere, or
/// be over without having done anything.
absl::Status CheckNotice(const RawOptions& options, const std::string& signal, RequeueMode mode) {
  const std::optional<int64_t> limit = LimitOf(options);
  const int64_t earliest = SignalSeconds(signal) + kEarlySeconds;
  if (!limit.has_value() || earliest < *limit) {
    return absl::OkStatus();
  }
  const RawValue& time = *options.Find("time");
  return absl::OutOfRangeError(
      absl::StrCat(time.source, ": '", time.text, "' is too short for --signal=", signal,
                   ", which Slurm may send ", earliest,
                   " s before the limit, when the job has hardly begun, and which ",
                   AsksForRequeue(signal, mode)
                       ? "has it requeued; give a longer limit, a later signal, or --requeue=never"
                       : "ends it; give a longer limit or a later signal"));
}

}  // namespace

Request RequestOf(const RawOptions& options) {
  const std::pair<const char*, Request> requests[] = {{"help", Request::kHelp},
                                                      {"version", Request::kVersion},
                                                      {"man", Request::kManPage},
                                                      {"dry-run", Request::kDryRun}};
  for (const auto& [name, request] : requests) {
    if (options.IsOn(name)) {
      return request;
    }
  }
  return Request::kRun;
}

bool IsForReader(Request request) {
  return request != Request::kRun && request != Request::kDryRun;
}

RawOptions WithVariables(CliProgram program, RawOptions given, const Environment& environment) {
  const RawOptions variables = OptionsOfEnvironment(program, environment);
  for (const OptionSpec& option : OptionsOf(program)) {
    const RawValue* value = variables.Find(option.name);
    if (option.family == OptionFamily::kSbatch && value != nullptr) {
      given.values.try_emplace(option.name, *value);
    }
  }
  return given;
}

absl::Status CheckSbatchValues(CliProgram program, const RawOptions& options) {
  for (const OptionSpec& option : OptionsOf(program)) {
    const RawValue* value = options.Find(option.name);
    if (option.family == OptionFamily::kSbatch && value != nullptr) {
      RETURN_IF_ERROR(CheckSbatchValue(option, *value));
    }
  }
  return absl::OkStatus();
}

std::string TextOr(const RawOptions& options, const char* name, const std::string& otherwise) {
  const RawValue* value = options.Find(name);
  return value == nullptr ? otherwise : value->text;
}

absl::StatusOr<std::vector<Directive>> MakeDirectives(CliProgram program, const RawOptions& options,
                                                      const std::string& name,
                                                      const NodeRange& nodes) {
  const bool is_array = options.Find("array") != nullptr;
  std::vector<Directive> directives{
      {"job-name", TextOr(options, "job-name", name)},
      {"nodes",
       nodes.min == nodes.max ? absl::StrCat(nodes.min) : absl::StrCat(nodes.min, "-", nodes.max)},
      {"ntasks-per-node", "1"},
      {"output", TextOr(options, "output", is_array ? "%x-%A_%a.out" : "%x-%j.out")}};
  for (const OptionSpec& option : OptionsOf(program)) {
    const RawValue* value = options.Find(option.name);
    const bool is_made = std::find(std::begin(kMadeHere), std::end(kMadeHere),
                                   absl::string_view(option.name)) != std::end(kMadeHere);
    if (option.family == OptionFamily::kSbatch && value != nullptr && !is_made) {
      directives.push_back({option.name, option.takes_value() ? value->text : ""});
    }
  }
  if (const RawValue* more = options.Find("sbatch-args")) {
    for (const absl::string_view word :
         absl::StrSplit(more->text, absl::ByAnyChar(" \t"), absl::SkipEmpty())) {
      if (!absl::StartsWith(word, "--") || !IsDirectiveValue(word)) {
        return InvalidValue({more->source, std::string(word)},
                            "an option of sbatch, as --name or --name=value");
      }
      const size_t equals = word.find('=');
      directives.push_back(
          {std::string(word.substr(2, equals - 2)),
           equals == absl::string_view::npos ? "" : std::string(word.substr(equals + 1))});
    }
  }
  return directives;
}

absl::StatusOr<std::vector<Directive>> QueueDirectives(const RawOptions& options,
                                                       const LaunchPlan& plan) {
  const std::string requeue = TextOr(options, "requeue", "");
  const bool is_requeued = !requeue.empty() && requeue != "never";
  const std::string mode = TextOr(options, "open-mode", is_requeued ? "append" : "");
  const std::string signal =
      TextOr(options, "signal", is_requeued ? RequeueSignal(LimitOf(options)) : "");
  std::vector<Directive> directives;
  if (!requeue.empty()) {
    directives.push_back({is_requeued ? "requeue" : "no-requeue", ""});
  }
  if (!mode.empty()) {
    directives.push_back({"open-mode", mode});
  }
  if (!signal.empty()) {
    directives.push_back({"signal", signal});
    if (plan.requeue != RequeueMode::kNever) {
      RETURN_IF_ERROR(CheckNotice(options, signal, plan.requeue));
    }
  }
  if (plan.min_nodes < plan.max_nodes || options.IsOn("no-kill")) {
    directives.push_back({"no-kill", ""});
  }
  return directives;
}

}  // namespace fsdprun
