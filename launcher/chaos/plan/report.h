#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "launcher/chaos/plan/campaign.h"

namespace fsdprun::chaos {

/// How it has come out.
struct Outcome {
  /// A command line that says the same again; empty for a schedule of the user's.
  std::optional<uint64_t> seed;
  std::string run_id;
  /// The job's; unset if it runs on, or nobody knows.
  std::optional<int> job_exit_code;
  /// Its coordinator was nowhere to be found for so long, so that nobody knows how it has ended.
  std::optional<Duration> gone_for;
  /// It was not our job to end it, or to wait for its end.
  bool job_runs_on = false;
  /// A signal has ended the run.
  bool is_interrupted = false;
  /// What this program could not do itself, so that the run had to end; a sentence, or empty.
  std::string could_not;
  /// Of --verify.
  std::optional<int> verify_exit_code;
  /// The job, as it was seen last.
  JobView view;
  std::optional<Duration> lasted;
};

struct Verdict {
  bool is_good = false;
  /// A sentence.
  std::string text;
  /// What to look at; empty if there is nothing.
  std::string advice;
};

/// Pure.
Verdict Judge(const Campaign& campaign, const Outcome& outcome);

/// For how long not all workers ran because of faults: each counts, if it cost a world, from its
/// beginning until all of them run again, and overlapping ones count once. Pure.
Duration TimeLost(const std::vector<FaultRecord>& records);

/// `3/200 kill worker 1 (pid 4711): all workers got on after 0.84 s, generation 5`. Pure.
/// Without the number of all if that is not known before.
std::string RecordText(const Campaign& campaign, size_t index);

/// Some lines for people, with the verdict. Pure.
std::string ReportText(const Campaign& campaign, const Outcome& outcome);
/// One JSON object, without a newline; docs/CHAOS.md is the schema. Pure.
std::string ReportJson(const Campaign& campaign, const Outcome& outcome);

/// A sentence if the job may run out of restarts; empty if not. Pure.
std::string RestartWarning(const FaultPlan& plan, const JobView& view);
/// A sentence if checkpoints are damaged and nothing tells what the job makes of that; empty if
/// not. Pure.
std::string DamageWarning(const FaultPlan& plan, bool has_verify);

}  // namespace fsdprun::chaos
