#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/rpc/tls_files.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/option_values.h"
#include "launcher/cli/raw_options.h"

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
  /// --workers: of `status`.
  bool with_workers = false;
  /// --once: of `top`.
  bool once = false;
  /// Empty: all.
  std::vector<int> ranks;
  std::vector<std::string> nodes;
  int tail_lines = 100;
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Of `drain`.
  std::string node;
  bool may_wait = false;
  /// Of `scale`.
  NodeNumbers numbers;
};

/// `0`, or `0,4-7`: ranks in the order in which they are written. Pure. Errors: OUT_OF_RANGE.
absl::StatusOr<std::vector<int>> ToRanks(const RawValue& value);

/// `args`: what follows the command. Pure. Errors: as Note [Usage errors and value errors].
absl::StatusOr<JobOptions> ReadJobOptions(CliProgram program, const std::vector<std::string>& args);

}  // namespace fsdprun
