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

/// How this launcher takes part in the rendezvous: whether it hosts the coordinator, on which
/// socket, with which token.
struct Rendezvous {
  /// The coordinator runs in this process.
  bool hosts = false;
  /// Where other nodes reach the coordinator; port 0 for a one-node job, which no other node can
  /// join.
  NumericEndpoint endpoint;
  /// Bound to `endpoint` or to all addresses if this launcher hosts the coordinator, or to the
  /// master port of a static one-node job; else invalid.
  UniqueFd listener;
  /// This node's address for other nodes and for MASTER_ADDR.
  std::string node_address;
  /// Given by the operator or written to `token_file`; empty if it has to be read from
  /// `token_path`.
  std::string token;
  std::string token_path;
  std::optional<TokenFile> token_file;
};

/// Decides where the coordinator runs, and binds its socket if it is here. Each name lookup takes a
/// few seconds at most, and ends when `is_cancelled` returns true (CANCELLED). Errors name the
/// address or port, the process that holds it if known, and what to do.
absl::StatusOr<Rendezvous> ResolveRendezvous(const LaunchPlan& plan, const Environment& environment,
                                             CliProgram program,
                                             const std::function<bool()>& is_cancelled);

}  // namespace fsdprun
