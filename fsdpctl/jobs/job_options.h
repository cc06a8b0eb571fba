#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/rpc/tls_files.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {

/// What a command line about a running job says.
struct JobOptions {
  /// kRun, or a text that is asked for instead.
  Request request = Request::kRun;
  /// A run id or a pid; empty: the only job there is.
  std::string job;
  /// HOST:PORT of the coordinator; empty: this machine's jobs are asked.
  std::string endpoint;
  std::string token_file;
  /// --no-token.
  bool takes_anybody = false;
  TlsFiles tls;
  bool follows = false;
  bool is_json = false;
  bool now = false;
  /// Of `drain`.
  std::string node;
  bool may_wait = false;
  /// Of `scale`.
  NodeNumbers nodes;
};

/// `args`: what follows the command. Pure. Errors: as Note [Usage errors and value errors].
absl::StatusOr<JobOptions> ReadJobOptions(CliProgram program, const std::vector<std::string>& args);

}  // namespace fsdprun
