#include "launcher/slurm/run_history.h"

#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kRunMagic = "fsdprun-slurm-run=1";
/// A file's name may have 255 bytes.
constexpr size_t kLongestPart = 50;

// As a part of a file's name.
std::string PartOf(absl::string_view text) {
  std::string part(text.substr(0, kLongestPart));
  for (char& c : part) {
    if (!absl::ascii_isalnum(static_cast<unsigned char>(c)) && c != '-' && c != '.') {
      c = '_';
    }
  }
  return part;
}

// `before`: null without an earlier run.
bool IsFruitless(const PastRun* before, const RunEnd& end) {
  const bool reported = before != nullptr && before->first_step >= 1;
  const bool reports = end.first_step >= 1;
  if (reported && reports && end.first_step <= before->first_step) {
    // Workers that end with 0 again and again, and begin again where they began, save nothing.
    return !HasSaved(end) || before->has_saved;
  }
  // Without any steps, the end alone is no bad sign after a long run.
  return !HasGained(end) && (reported || reports || end.is_short);
}

}  // namespace

PastRun RememberRun(const std::optional<PastRun>& before, const RunEnd& end, int restarts) {
  // One that is not of an earlier run is of another job that had the same id.
  const PastRun* earlier = before.has_value() && before->restarts < restarts ? &*before : nullptr;
  const RunsInARow runs = earlier != nullptr ? earlier->runs : RunsInARow();
  PastRun run{.restarts = restarts,
              .first_step = end.first_step,
              .has_saved = HasSaved(end),
              .runs = {.fruitless = IsFruitless(earlier, end) ? runs.fruitless + 1 : 0,
                       .silent = HasGained(end) ? 0 : runs.silent + 1}};
  if (run.first_step < 1 && earlier != nullptr) {
    run.first_step = earlier->first_step;  // Ended before its first step: it began there, too.
  }
  return run;
}

RunsInARow RunsOfUnknown(const RunEnd& end, int restarts) {
  return {.fruitless = IsFruitless(nullptr, end) ? restarts + 1 : 0,
          .silent = HasGained(end) ? 0 : restarts + 1};
}

std::string RunHistoryName(const LaunchPlan& plan, const Environment& environment) {
  const auto text = [&environment](const char* name) -> absl::string_view {
    const auto variable = environment.find(name);
    return variable == environment.end() ? "" : absl::string_view(variable->second);
  };
  std::vector<std::string> parts = {PartOf(text("SLURM_CLUSTER_NAME")),
                                    PartOf(plan.scheduler_job->name)};
  if (const absl::string_view step = text("SLURM_STEP_ID"); !step.empty()) {
    parts.push_back(PartOf(step));
    if (const absl::string_view task = text("SLURM_PROCID"); plan.IsSingleNode() && !task.empty()) {
      parts.push_back(PartOf(task));
    }
  }
  if (!plan.program.empty()) {
    const std::vector<absl::string_view> folders = absl::StrSplit(plan.program.front(), '/');
    parts.push_back(PartOf(folders.back()));
  }
  return absl::StrJoin(parts, ".");
}

std::string EncodePastRun(const PastRun& run) {
  return absl::StrCat(kRunMagic, " restarts=", run.restarts, " first_step=", run.first_step,
                      " has_saved=", run.has_saved ? 1 : 0, " fruitless=", run.runs.fruitless,
                      " silent=", run.runs.silent, "\n");
}

absl::StatusOr<PastRun> DecodePastRun(absl::string_view text) {
  PastRun run;
  int has_saved = 0;
  int found = 0;
  const std::vector<absl::string_view> words =
      absl::StrSplit(absl::StripAsciiWhitespace(text), ' ', absl::SkipEmpty());
  for (const absl::string_view word : words) {
    const std::pair<absl::string_view, absl::string_view> field =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    found +=
        (field.first == "restarts" && absl::SimpleAtoi(field.second, &run.restarts)) ||
                (field.first == "first_step" && absl::SimpleAtoi(field.second, &run.first_step)) ||
                (field.first == "has_saved" && absl::SimpleAtoi(field.second, &has_saved)) ||
                (field.first == "fruitless" &&
                 absl::SimpleAtoi(field.second, &run.runs.fruitless)) ||
                (field.first == "silent" && absl::SimpleAtoi(field.second, &run.runs.silent))
            ? 1
            : 0;
  }
  run.has_saved = has_saved != 0;
  if (words.empty() || words.front() != kRunMagic || found != 5 || run.runs.fruitless < 0 ||
      run.runs.silent < 0) {
    return absl::InvalidArgumentError("no record of a run of a Slurm job");
  }
  return run;
}

}  // namespace fsdprun
