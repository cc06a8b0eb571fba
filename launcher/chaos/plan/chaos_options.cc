#include "launcher/chaos/plan/chaos_options.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "launcher/chaos/plan/random_plan.h"
#include "launcher/chaos/plan/schedule.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun::chaos {
namespace {

constexpr int64_t kDefaultFillLeave = 1 << 20;
/// Two faults are at least that far from each other, or as many come as nobody reads of.
constexpr Duration kLeastPause = std::chrono::milliseconds(300);
constexpr int kMostFaultsOfDuration = 10'000;
constexpr char kTime[] = "a time such as 5, 1.5s, 200ms or 10min";
constexpr char kTimes[] = "a time, or two as MIN:MAX, such as 200ms:5s";

Request RequestIn(const RawOptions& options) {
  const Request text = TextRequest(options);
  return text == Request::kRun && options.IsOn("dry-run") ? Request::kDryRun : text;
}

absl::Status ReadTime(const RawOptions& options, const char* name, Duration* result) {
  const RawValue* value = options.Find(name);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const std::optional<Duration> length = ParseLength(value->text);
  if (!length.has_value()) {
    return InvalidValue(*value, kTime);
  }
  *result = *length;
  return absl::OkStatus();
}

absl::Status ReadTimes(const RawOptions& options, const char* name, LengthRange* result) {
  const RawValue* value = options.Find(name);
  if (value == nullptr) {
    return absl::OkStatus();
  }
  const std::optional<LengthRange> range = ParseLengthRange(value->text);
  if (!range.has_value()) {
    return InvalidValue(*value, kTimes);
  }
  *result = *range;
  return absl::OkStatus();
}

absl::Status ReadNames(const RawOptions& options, ChaosOptions* result) {
  if (const RawValue* kinds = options.Find("kinds"); kinds != nullptr) {
    for (const absl::string_view name : absl::StrSplit(kinds->text, ',')) {
      const std::optional<FaultKind> kind = FaultKindOf(name);
      if (!kind.has_value()) {
        return InvalidValue(*kinds, "a list of kill, stop, partition, delay, fill, corrupt");
      }
      result->kinds.push_back(*kind);
    }
  }
  if (const RawValue* targets = options.Find("targets"); targets != nullptr) {
    for (const absl::string_view name : absl::StrSplit(targets->text, ',')) {
      const std::optional<FaultTarget> target = FaultTargetOf(name);
      if (!target.has_value()) {
        return InvalidValue(*targets, "a list of worker, keeper, agent, coordinator");
      }
      result->targets.push_back(*target);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadNumbers(const RawOptions& options, ChaosOptions* result) {
  if (const RawValue* faults = options.Find("faults"); faults != nullptr) {
    ASSIGN_OR_RETURN(result->faults, ToInt(*faults, 1, "a number of faults, 1 or more"));
  }
  if (const RawValue* nodes = options.Find("nodes"); nodes != nullptr) {
    ASSIGN_OR_RETURN(result->nodes, ToInt(*nodes, 1, "a number of launchers, 1 or more"));
  }
  if (const RawValue* seed = options.Find("seed"); seed != nullptr) {
    uint64_t number = 0;
    if (!absl::SimpleAtoi(seed->text, &number)) {
      return InvalidValue(*seed, "a whole number, 0 or more");
    }
    result->seed = number;
  }
  result->fill_leave = kDefaultFillLeave;
  if (const RawValue* leave = options.Find("fill-leave"); leave != nullptr) {
    if (!absl::SimpleAtoi(leave->text, &result->fill_leave) || result->fill_leave < 0) {
      return InvalidValue(*leave, "a number of bytes, 0 or more");
    }
  }
  return absl::OkStatus();
}

/// What must, or cannot, stand together.
absl::Status CheckTogether(const RawOptions& options, const ChaosOptions& result) {
  if (!result.command.empty() && !result.job.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("--job is for a job that runs, but '",
                                                   result.command.front(),
                                                   "' is to be started: give one of the two"));
  }
  if (result.command.empty() && result.nodes > 0) {
    return absl::OutOfRangeError("--nodes is for jobs that are started here: give their command");
  }
  if (result.command.empty() && !result.verify.empty() && !result.until_end) {
    return absl::OutOfRangeError(
        "--verify is run after the job's end: it needs --until-end, or a command to start");
  }
  if (!result.schedule.empty()) {
    for (const char* other : {"faults", "every", "kinds", "targets", "length", "latency"}) {
      if (options.Find(other) != nullptr) {
        return absl::OutOfRangeError(absl::StrCat("--", other,
                                                  " is for random faults, and "
                                                  "--schedule names each: leave one of them out"));
      }
    }
  }
  return absl::OkStatus();
}

/// As many as can come in that time.
int FaultsOf(Duration duration, Duration every) {
  const auto most = duration / std::max(every / 2, kLeastPause) + 1;
  return static_cast<int>(std::min<int64_t>(most, kMostFaultsOfDuration));
}

absl::Status CheckSchedule(const FaultPlan& plan, const Powers& powers) {
  for (const PlannedFault& fault : plan.faults) {
    if (const std::string why = WhyNot(fault.kind, fault.target, powers); !why.empty()) {
      return absl::OutOfRangeError(absl::StrCat("--schedule: ", why));
    }
  }
  return absl::OkStatus();
}

std::vector<FaultTarget> UsualTargets(Form form) {
  return form == Form::kNodes
             ? std::vector<FaultTarget>(std::begin(kFaultTargets), std::end(kFaultTargets))
             : std::vector<FaultTarget>{FaultTarget::kWorker, FaultTarget::kKeeper};
}

/// What the user has named has to be possible with some target.
absl::Status CheckKinds(const RandomPlanOptions& random, const std::vector<FaultKind>& named) {
  for (const FaultKind kind : named) {
    std::string why = absl::StrCat("--kinds: ", NameOf(kind), " suits none of --targets");
    bool is_possible = false;
    for (FaultTarget target : {FaultTarget::kNone, FaultTarget::kWorker, FaultTarget::kKeeper,
                               FaultTarget::kAgent, FaultTarget::kCoordinator}) {
      const bool is_meant =
          target == FaultTarget::kNone ||
          std::find(random.targets.begin(), random.targets.end(), target) != random.targets.end();
      if (!Suits(kind, target)) {
        continue;
      }
      const std::string problem = WhyNot(kind, target, random.powers);
      is_possible |= is_meant && problem.empty();
      why = problem.empty() ? why : absl::StrCat("--kinds: ", problem);
    }
    if (!is_possible) {
      return absl::OutOfRangeError(why);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChaosOptions> ReadChaosOptions(const std::vector<std::string>& args) {
  ASSIGN_OR_RETURN(const RawOptions options, OptionsOfArguments(CliProgram::kChaos, args));
  ChaosOptions result{.request = RequestIn(options)};
  if (result.request != Request::kRun && result.request != Request::kDryRun) {
    return result;
  }
  result.job = options.TextOf("job");
  result.command = options.program;
  result.schedule = options.TextOf("schedule");
  result.fill = options.TextOf("fill");
  result.corrupt = options.TextOf("corrupt");
  result.verify = options.TextOf("verify");
  result.overlaps = options.IsOn("overlap");
  result.until_end = options.IsOn("until-end");
  result.is_json = options.IsOn("json");
  RETURN_IF_ERROR(ReadNumbers(options, &result));
  RETURN_IF_ERROR(ReadNames(options, &result));
  RETURN_IF_ERROR(ReadTime(options, "every", &result.every));
  RETURN_IF_ERROR(ReadTime(options, "patience", &result.patience));
  RETURN_IF_ERROR(ReadTime(options, "settle", &result.settle));
  if (options.Find("duration") != nullptr) {
    RETURN_IF_ERROR(ReadTime(options, "duration", &result.duration.emplace()));
    // Without a number of its own, the time alone ends it.
    if (options.Find("faults") == nullptr) {
      result.faults = FaultsOf(*result.duration, result.every);
    }
  }
  RETURN_IF_ERROR(ReadTimes(options, "length", &result.length));
  RETURN_IF_ERROR(ReadTimes(options, "latency", &result.latency));
  RETURN_IF_ERROR(CheckTogether(options, result));
  return result;
}

absl::StatusOr<FaultPlan> PlanFaults(const ChaosOptions& options, Form form,
                                     const std::optional<std::string>& schedule, uint64_t seed) {
  Powers powers{.form = form,
                .names_targets = !options.targets.empty(),
                .has_fill = !options.fill.empty(),
                .has_corrupt = !options.corrupt.empty()};
  if (schedule.has_value()) {
    powers.names_targets = true;
    absl::StatusOr<FaultPlan> plan = ParseSchedule(*schedule, seed);
    if (!plan.ok()) {
      return absl::OutOfRangeError(
          absl::StrCat("--schedule: ", options.schedule, ": ", plan.status().message()));
    }
    RETURN_IF_ERROR(CheckSchedule(*plan, powers));
    return plan;
  }
  const RandomPlanOptions random{
      .seed = seed,
      .faults = options.faults,
      .every = options.every,
      .kinds = options.kinds.empty()
                   ? std::vector<FaultKind>(std::begin(kFaultKinds), std::end(kFaultKinds))
                   : options.kinds,
      .targets = options.targets.empty() ? UsualTargets(form) : options.targets,
      .powers = powers,
      .length = options.length,
      .latency = options.latency};
  RETURN_IF_ERROR(CheckKinds(random, options.kinds));
  FaultPlan plan = MakeRandomPlan(random);
  if (plan.faults.empty()) {
    return absl::OutOfRangeError("no fault can be done to the targets of --targets");
  }
  return plan;
}

}  // namespace fsdprun::chaos
