#include "launcher/slurm/requeue.h"

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace fsdprun {
namespace {

/// For the end of the step, and for scontrol.
constexpr int64_t kEndSeconds = 30;
constexpr int64_t kMarginDivisor = 2;
/// While the limit is near, and it is not known whether another run would go on.
constexpr int64_t kLookAgainSeconds = 10;
/// A limit can be moved by scontrol update, to both sides.
constexpr int64_t kLongestPauseSeconds = 600;
/// While the job is neither running nor over, as one that is suspended.
constexpr int64_t kOtherStateSeconds = 60;
/// Programs save at least every so many seconds, or in each half of their time limit.
constexpr int64_t kShortSeconds = 600;
constexpr int64_t kShortDivisor = 2;

std::string Describe(StopCause cause, const RunEnd& end) {
  switch (cause) {
    case StopCause::kNotice:
    case StopCause::kSignalled:
      return absl::StrCat("SIG", ::sigabbrev_np(end.signal), " asked for it");
    case StopCause::kTimeLimit:
      return "its time limit ends";
    case StopCause::kPreempted:
      return "it was preempted";
    case StopCause::kRequeued:
    case StopCause::kCancelled:
    case StopCause::kUnknown:
      break;
  }
  return "";
}

bool AsksForAnotherRun(RequeueMode mode, StopCause cause, int signal) {
  switch (cause) {
    case StopCause::kNotice:
    case StopCause::kTimeLimit:
    case StopCause::kPreempted:
      return true;
    case StopCause::kSignalled:  // By --signal=B:TERM@..., or by an operator.
      return mode == RequeueMode::kAlways && signal == SIGTERM;
    case StopCause::kRequeued:
    case StopCause::kCancelled:
    case StopCause::kUnknown:
      break;
  }
  return false;
}

// Empty, or whose work since the last checkpoint another run may have to do again.
std::string DescribeLosses(const WorkerEnds& ends) {
  const int lost = ends.workers - ends.well - ends.killed - ends.failed;
  if (ends.workers == 0 || ends.AllWell()) {
    return "";
  }
  std::vector<std::string> parts;
  for (const auto& [count, how] : {std::pair(ends.killed, " killed when the grace was over"),
                                   std::pair(ends.failed, " failed when they were stopped"),
                                   std::pair(lost, " lost with their nodes")}) {
    if (count > 0) {
      parts.push_back(absl::StrCat(count, how));
    }
  }
  const int noted = static_cast<int>(ends.notes.size());
  const bool has_more = noted < ends.killed + ends.failed;
  return absl::StrCat("of ", ends.workers, " workers, ", absl::StrJoin(parts, ", "),
                      noted == 0 ? "" : " (", absl::StrJoin(ends.notes, "; "),
                      has_more ? "; and more" : "", noted == 0 ? "" : ")",
                      ", so that not all may have saved. ");
}

bool IsBounded(RequeueMode mode, StopCause cause) {
  return mode == RequeueMode::kAuto && cause != StopCause::kPreempted;
}

// A program that saves nothing, or whose save does not fit into its time, would be run again and
// again.
std::string WhyNotAgain(RequeueMode mode, StopCause cause, const RunEnd& end, int fruitless) {
  if (cause == StopCause::kTimeLimit && mode == RequeueMode::kAuto && !HasGained(end)) {
    return "but this run has reported no steps to this launcher, nor have all of its workers ended "
           "with 0 when they were stopped, so that another run would get no further; if the "
           "program goes on from what it has saved, give --requeue=always";
  }
  if (IsBounded(mode, cause) && fruitless >= kMostFruitlessRuns) {
    return absl::StrCat("but ", fruitless,
                        " runs in a row have shown no sign of progress: each began no further than "
                        "the one before, or has neither got beyond its first step nor ended all of "
                        "its workers with 0; see what keeps the workers from saving "
                        "(--shutdown-timeout, the disk, KillWait), then submit it again, with "
                        "--requeue=always if it is to be requeued all the same");
  }
  return "";
}

// Empty, or what is to be known before the bound is reached.
std::string DescribeRuns(RequeueMode mode, StopCause cause, const RunsInARow& runs) {
  constexpr absl::string_view kWithout = " without a sign of progress";
  if (runs.fruitless > 0) {
    const std::string of =
        IsBounded(mode, cause) ? absl::StrCat(" of ", kMostFruitlessRuns) : " in a row";
    return absl::StrCat("; run ", runs.fruitless, of, kWithout);
  }
  if (runs.silent >= kMostFruitlessRuns) {
    return absl::StrCat("; run ", runs.silent, " in a row", kWithout,
                        ", for which there is no bound after a run of this length, because the "
                        "program may have saved from time to time; if it does not, scancel ends "
                        "the job");
  }
  return "";
}

}  // namespace

bool IsNotice(int signal) { return signal == SIGUSR1 || signal == SIGUSR2; }

bool IsNews(int earlier_signal, int signal) {
  return earlier_signal == 0 || (!IsNotice(signal) && signal != SIGTERM);
}

bool HasSaved(const RunEnd& end) {
  return end.kind == RunEnd::Kind::kSucceeded ||
         (end.kind == RunEnd::Kind::kStopped && end.workers.AllWell());
}

bool HasGained(const RunEnd& end) {
  return HasSaved(end) || (end.first_step >= 1 && end.step > end.first_step);
}

bool MayBeUnfinished(RequeueMode mode, const RunEnd& end) {
  if (mode == RequeueMode::kNever || (end.signal == 0 && !end.is_before_limit)) {
    return false;
  }
  switch (end.kind) {
    case RunEnd::Kind::kStopped:  // By a user's Ctrl-C for good.
      return end.signal != SIGINT || end.is_before_limit;
    case RunEnd::Kind::kSucceeded:
      return end.total > 0
                 ? end.step < end.total
                 : mode == RequeueMode::kAlways || end.is_before_limit || IsNotice(end.signal);
    case RunEnd::Kind::kFailed:
      break;
  }
  return false;
}

bool IsShort(const SlurmJobRecord& record, int64_t now) {
  if (!record.start_time.has_value() || record.reason == "TimeLimit" ||
      record.preempt_time.has_value()) {
    return false;
  }
  const int64_t length = now - *record.start_time;
  // Of a job that is ending, it is the time of that end.
  const bool has_limit = record.phase == SlurmPhase::kRunning && record.end_time.has_value();
  return length < kShortSeconds &&
         (!has_limit || length < (*record.end_time - *record.start_time) / kShortDivisor);
}

StopCause CauseOf(const RunEnd& end, const SlurmJobRecord& record, int restarts) {
  const bool is_ending = record.phase == SlurmPhase::kEnding;
  if (record.restarts > restarts) {
    return StopCause::kRequeued;
  }
  if (record.phase == SlurmPhase::kUnknown) {
    return StopCause::kUnknown;
  }
  if (record.reason == "TimeLimit" || (end.is_before_limit && !is_ending)) {
    return StopCause::kTimeLimit;
  }
  if (record.IsEndOfPreemption() || (record.preempt_time.has_value() && !is_ending)) {
    return StopCause::kPreempted;
  }
  if (is_ending) {
    return StopCause::kCancelled;
  }
  return IsNotice(end.signal) ? StopCause::kNotice : StopCause::kSignalled;
}

RequeueDecision DecideRequeue(RequeueMode mode, const RunEnd& end, const SlurmJobRecord& record,
                              int restarts, const RunsInARow& runs) {
  const StopCause cause = CauseOf(end, record, restarts);
  if (cause == StopCause::kRequeued) {
    return {false, absl::StrCat(DescribeLosses(end.workers), "Slurm has requeued the job")};
  }
  if (cause == StopCause::kUnknown) {
    return {false, absl::StrCat("the job is not requeued, because Slurm says of it '", record.state,
                                "', which this program does not know; to go on, scontrol requeue "
                                "it, or submit it again")};
  }
  if (!AsksForAnotherRun(mode, cause, end.signal)) {
    return {false, ""};
  }
  const std::string why = Describe(cause, end);
  if (end.kind == RunEnd::Kind::kSucceeded && end.was_passed_on && end.total <= 0 &&
      mode == RequeueMode::kAuto) {
    return {false, absl::StrCat(why,
                                ", but the workers, which were told, have ended with 0 and never "
                                "reported how many steps there are: that is taken for the end of "
                                "the job; give --requeue=always to have it requeued")};
  }
  if (!record.may_be_requeued) {
    return {false, absl::StrCat(
                       why,
                       ", but the job may not be requeued (Requeue=0, or no batch file); submit it "
                       "with sbatch --requeue, or submit it again to go on")};
  }
  if (const std::string why_not = WhyNotAgain(mode, cause, end, runs.fruitless); !why_not.empty()) {
    return {false, absl::StrCat(DescribeLosses(end.workers), why, ", ", why_not)};
  }
  return {true, absl::StrCat(DescribeLosses(end.workers), "the job is requeued, because ", why,
                             DescribeRuns(mode, cause, runs))};
}

bool RequeuesUnasked(RequeueMode mode, const RunEnd& end, bool other_signal) {
  return mode != RequeueMode::kNever && end.kind == RunEnd::Kind::kStopped && !other_signal &&
         IsNotice(end.signal) && HasGained(end);
}

bool IsRefusal(absl::string_view message) {
  for (const char* text : {"disabled", "Invalid job id", "ermission denied", "not authorized"}) {
    if (absl::StrContains(message, text)) {
      return true;
    }
  }
  return false;
}

int64_t MarginOf(const LimitMargin& margin, const SlurmJobRecord& record) {
  if (margin.seconds.has_value()) {
    return *margin.seconds;
  }
  const int64_t wanted = margin.grace_s + kEndSeconds;
  if (!record.start_time.has_value() || !record.end_time.has_value()) {
    return wanted;
  }
  const int64_t limit = std::max<int64_t>(*record.end_time - *record.start_time, 0);
  return std::min(wanted, limit / kMarginDivisor);
}

std::string MarginWarning(const LimitMargin& margin, const SlurmJobRecord& record) {
  const int64_t seconds = MarginOf(margin, record);
  if (seconds >= margin.grace_s) {
    return "";
  }
  return absl::StrCat("the workers are stopped ", seconds, " s before the time limit (",
                      margin.seconds.has_value() ? "--requeue-margin" : "half of it",
                      "), but may take ", margin.grace_s,
                      " s to save (--shutdown-timeout): Slurm kills those that do; give ",
                      margin.seconds.has_value() ? "a longer margin" : "the job more time",
                      ", or a shorter timeout");
}

std::optional<int64_t> SecondsToLimit(RequeueMode mode, const LimitMargin& margin,
                                      const SlurmJobRecord& record, int64_t now,
                                      bool has_progress) {
  if (mode == RequeueMode::kNever || !record.may_be_requeued ||
      record.phase == SlurmPhase::kEnding) {
    return std::nullopt;
  }
  if (record.phase != SlurmPhase::kRunning || record.is_suspended) {
    return kOtherStateSeconds;
  }
  if (!record.end_time.has_value()) {
    return kLongestPauseSeconds;  // It may be given a limit, as before a maintenance.
  }
  const int64_t left = *record.end_time - now - MarginOf(margin, record);
  if (left > 0) {
    return std::min(left, kLongestPauseSeconds);
  }
  return mode == RequeueMode::kAlways || has_progress ? 0 : kLookAgainSeconds;
}

int64_t ControllerTime(const SlurmJobRecord& record, int64_t node_time, int64_t uptime_s) {
  return std::max(node_time, record.start_time.value_or(0) + uptime_s);
}

}  // namespace fsdprun
