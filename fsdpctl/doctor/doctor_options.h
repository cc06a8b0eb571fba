#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"

namespace fsdprun::doctor {

/// What this node does for the test of the way to others.
enum class PairRole {
  kNone,
  /// Waits for them.
  kListen,
  kGo,
  /// Waits for them if the endpoint is its own.
  kMeet,
};

struct DoctorOptions {
  /// kRun, or a text that is asked for instead.
  Request request = Request::kRun;
  bool shows_all = false;
  bool is_json = false;
  std::string log_dir;
  /// A name or a path; empty: python3.
  std::string python;
  /// Of the rendezvous.
  uint16_t port = 29400;
  bool port_is_given = false;

  PairRole role = PairRole::kNone;
  /// Of kGo and kMeet: the endpoint, and what is known of this node and of others' addresses.
  LaunchPlan place;
  /// With this one; 0: as many as come.
  int nodes = 0;
  /// Until the next node comes; unset: for ever.
  std::optional<Duration> patience;
  std::string token_file;
  bool takes_anybody = false;
  /// The node that listens prints what was found on all, and this one only what keeps it from
  /// getting there.
  bool leaves_printing = false;
};

/// `args`: what follows the command. In a step of Slurm with several nodes these meet at its first
/// one, unless something else is said. Pure. Errors: as Note [Usage errors and value errors].
absl::StatusOr<DoctorOptions> ReadDoctorOptions(const std::vector<std::string>& args,
                                                const Environment& environment);

}  // namespace fsdprun::doctor
