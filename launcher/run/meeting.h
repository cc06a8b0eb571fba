#pragma once

#include <functional>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/unique_fd.h"
#include "launcher/cli/command_line.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/run/endpoint.h"
#include "launcher/run/job_token.h"

namespace fsdprun {

/// How this launcher meets the others: whether it hosts the coordinator, on which socket, with
/// which secret.
struct Meeting {
  /// The coordinator runs in this process.
  bool hosts = false;
  /// Where the others reach it; port 0 for a job of one node, which nobody else can join.
  NumericEndpoint endpoint;
  /// Bound to `endpoint`, or to all addresses, if this launcher hosts, or to the workers' store of
  /// a static one-node job; else invalid.
  UniqueFd listener;
  /// This node's address for the others and for MASTER_ADDR.
  std::string node_address;
  /// Given by the operator or written to `token_file`; empty if it has to be read from
  /// `token_path`.
  std::string token;
  std::string token_path;
  std::optional<TokenFile> token_file;
};

/// Decides and binds. Names are looked up within a few seconds each, or until `is_cancelled`.
/// Errors name the address or port, who holds it if that can be found out, and what to do;
/// CANCELLED.
absl::StatusOr<Meeting> Meet(const LaunchPlan& plan, const Environment& environment,
                             CliProgram program, const std::function<bool()>& is_cancelled);

}  // namespace fsdprun
