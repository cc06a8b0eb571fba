#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "worker/contract/worker_environment.h"

namespace fsdprun::worker {

/// Training diverged, such as a loss that is not finite. All ranks detect it alike, from reduced
/// values.
class DivergedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The failure that ended this process, as reported on the console, in the error file and by the
/// exit code.
struct Failure {
  std::string type;
  /// One line.
  std::string line;
  /// The full text, for the error file.
  std::string text;
  int exit_code = 1;
  /// Every rank of this node detects the same failure.
  bool is_shared = false;
  /// Every rank of the job does, and the text names the rank.
  bool is_of_all_ranks = false;
  /// A peer was lost: the root cause is elsewhere.
  bool is_victim = false;
};

/// `is_launched`: started by a launcher, which restarts every exit code but
/// contract::kExitConfig. Pure.
Failure DescribeFailure(const std::exception_ptr& error, bool is_launched);

/// "fsdp-train: <line>", with the rank if there are several and the failure may concern only one.
std::string ConsoleLine(const Failure& failure, const WorkerEnvironment& environment);

/// Reports each problem once, in the error file and as a line on standard error: a failure
/// shared by all ranks is reported at once by the node's first rank, one of the whole job by rank
/// 0. The others, and victims of a lost peer, wait a few seconds to be killed with the job; a rank
/// that is still alive then reports it too. Returns the exit code.
int ReportFailure(const Failure& failure, const WorkerEnvironment& environment);

}  // namespace fsdprun::worker
