#include "launcher/slurm/job_record.h"

#include <algorithm>
#include <map>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace fsdprun {
namespace {

constexpr size_t kLongestQuote = 200;

/// A job that ends when its preemption says so ends at that second, or the next.
constexpr int64_t kPreemptionSeconds = 2;

// What stands before the state may be anything, the job's name, and so may what stands behind the
// times, a command or a comment.
absl::string_view FromState(absl::string_view line) {
  constexpr absl::string_view kState = " JobState=";
  size_t start = absl::string_view::npos;
  for (size_t end = line.find(" Dependency=");
       start == absl::string_view::npos && end != absl::string_view::npos;
       end = line.find(" Dependency=", end + 1)) {
    start = line.rfind(kState, end);
  }
  start = start == absl::string_view::npos ? line.find(kState) : start;
  return line.substr(std::min(start, line.size()));
}

// The first value of each name. Some words are none, as of a command; what is asked for here has no
// blanks, and comes before those.
std::map<absl::string_view, absl::string_view> WordsOf(absl::string_view line) {
  std::map<absl::string_view, absl::string_view> words;
  for (const absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(word, absl::MaxSplits('=', 1));
    words.emplace(pair.first, pair.second);
  }
  return words;
}

// Of 22.05 to 26.05.
SlurmPhase PhaseOf(absl::string_view state) {
  for (const char* running :
       {"RUNNING", "CONFIGURING", "SUSPENDED", "STOPPED", "RESIZING", "SIGNALING", "EXPEDITING"}) {
    if (state == running) {
      return SlurmPhase::kRunning;
    }
  }
  for (const char* ending :
       {"COMPLETING",    "COMPLETED",     "CANCELLED",    "FAILED",        "TIMEOUT",
        "NODE_FAIL",     "PREEMPTED",     "BOOT_FAIL",    "DEADLINE",      "OUT_OF_MEMORY",
        "LAUNCH_FAILED", "RECONFIG_FAIL", "REVOKED",      "STAGE_OUT",     "PENDING",
        "REQUEUED",      "REQUEUE_FED",   "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"}) {
    if (state == ending) {
      return SlurmPhase::kEnding;
    }
  }
  return SlurmPhase::kUnknown;
}

std::optional<int64_t> TimeOf(absl::string_view text) {
  int64_t time = 0;
  return absl::SimpleAtoi(text, &time) && time > 0 ? std::optional(time) : std::nullopt;
}

}  // namespace

// Whoever cancels a job in the grace of its preemption ends it before that is over, and Slurm says
// no more of it than the time.
bool SlurmJobRecord::IsEndOfPreemption() const {
  return phase == SlurmPhase::kEnding && preempt_time.has_value() &&
         (!end_time.has_value() || *end_time - *preempt_time <= kPreemptionSeconds);
}

std::vector<std::string> ShowJobCommand(const std::string& job) {
  return {"scontrol", "--oneliner", "show", "job", job};
}

Environment ShowJobEnvironment(Environment environment) {
  environment["SLURM_TIME_FORMAT"] = "%s";
  return environment;
}

absl::StatusOr<SlurmJobRecord> ReadJobRecord(absl::string_view text) {
  const std::pair<absl::string_view, absl::string_view> lines =
      absl::StrSplit(text, absl::MaxSplits('\n', 1));
  const auto words = WordsOf(FromState(lines.first));
  const auto value = [&words](absl::string_view name) {
    const auto found = words.find(name);
    return found == words.end() ? absl::string_view() : found->second;
  };
  SlurmJobRecord record;
  record.state = std::string(value("JobState"));
  if (record.state.empty() || !absl::SimpleAtoi(value("Restarts"), &record.restarts)) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", lines.first.substr(0, kLongestQuote), "' is no record of a job"));
  }
  record.phase = PhaseOf(record.state);
  record.is_suspended = record.state == "SUSPENDED" || record.state == "STOPPED";
  record.reason = std::string(value("Reason"));
  record.may_be_requeued = value("Requeue") == "1" && value("BatchFlag") != "0";
  record.start_time = TimeOf(value("StartTime"));
  // Of a job that runs without a limit Slurm says that it ends a year after its start.
  const bool has_limit = value("TimeLimit") != "UNLIMITED" || record.phase != SlurmPhase::kRunning;
  record.end_time = has_limit ? TimeOf(value("EndTime")) : std::nullopt;
  record.preempt_time = TimeOf(value("PreemptTime"));
  return record;
}

}  // namespace fsdprun
