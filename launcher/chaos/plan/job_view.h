#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/mono_time.h"

namespace fsdprun::chaos {

/// What is known of the job, as its coordinator has said last.
struct JobView {
  /// When it was asked: what it said is at least as new.
  MonoTime asked_at{};
  /// It has answered the latest question.
  bool answers = false;
  /// The process of its coordinator lives, whether it answers or not.
  bool is_there = false;
  /// Its coordinator is gone, and among those of which it was one there is another job by now.
  bool is_replaced = false;
  std::string run_id;
  /// FSDPRUN_JOB_ID of its workers, which no other job has.
  std::string job_id;
  int64_t coordinator_pid = 0;
  /// Of that process; 0: not known.
  uint64_t coordinator_start_ticks = 0;
  /// As in the JSON of fsdpctl status.
  std::string phase;
  std::string reason;
  uint64_t generation = 0;
  int world_size = 0;
  /// Every node with a part in the world is connected and not suspected.
  bool is_whole = false;
  int restarts_used = 0;
  int max_restarts = 0;
  int membership_changes = 0;
  /// That its workers have reported in this world; -1: none.
  int64_t step = -1;
  /// Once it is decided how the job ends.
  std::optional<int> exit_code;
  std::string last_failure;

  bool Runs() const { return answers && phase == "running" && is_whole && !exit_code.has_value(); }
};

}  // namespace fsdprun::chaos
