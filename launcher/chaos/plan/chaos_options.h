#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/chaos/plan/fault.h"
#include "launcher/chaos/plan/length.h"
#include "launcher/chaos/plan/powers.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun::chaos {

/// What a command line of `fsdprun chaos` says.
struct ChaosOptions {
  /// kRun, kDryRun, or a text that is asked for instead.
  Request request = Request::kRun;
  /// A run id or a pid of a job that runs; empty where `command` is given.
  std::string job;
  /// What is started; empty: the job runs already.
  std::vector<std::string> command;
  /// Launchers that are started; 0: as many as the job takes.
  int nodes = 0;
  int faults = 20;
  std::optional<Duration> duration;
  Duration every = std::chrono::seconds(2);
  /// A file, see Note [A schedule of faults]; empty: at random.
  std::string schedule;
  std::optional<uint64_t> seed;
  /// Empty: all that can be done.
  std::vector<FaultKind> kinds;
  std::vector<FaultTarget> targets;
  LengthRange length{std::chrono::milliseconds(200), std::chrono::seconds(5)};
  LengthRange latency{std::chrono::milliseconds(50), std::chrono::milliseconds(500)};
  std::string fill;
  /// Bytes that --fill leaves.
  int64_t fill_leave = 0;
  std::string corrupt;
  bool overlaps = false;
  Duration patience = std::chrono::seconds(120);
  Duration settle = std::chrono::seconds(2);
  bool until_end = false;
  /// For a shell.
  std::string verify;
  bool is_json = false;
};

/// `args`: what follows `fsdprun chaos`. Pure. Errors: as Note [Usage errors and value errors].
absl::StatusOr<ChaosOptions> ReadChaosOptions(const std::vector<std::string>& args);

/// The plan that the options ask for, with `schedule` as the text of --schedule, or with `seed`.
/// Pure. Errors: OUT_OF_RANGE if a fault of it cannot be done, or none can, with what to do.
absl::StatusOr<FaultPlan> PlanFaults(const ChaosOptions& options, Form form,
                                     const std::optional<std::string>& schedule, uint64_t seed);

}  // namespace fsdprun::chaos
