#pragma once

#include <exception>
#include <stdexcept>
#include <string>

#include "worker/contract/worker_environment.h"

namespace fsdprun::worker {

/// Training went wrong in a way that all ranks see alike (they judge reduced values), such as a
/// loss that is not finite.
class DivergedError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// What ended this process, as console, error file and exit code tell it.
struct Failure {
  std::string type;
  /// One line.
  std::string line;
  /// All there is to say, for the error file.
  std::string text;
  int exit_code = 1;
  /// Every rank of this node comes to the same failure by itself.
  bool is_shared = false;
  /// A peer was lost: somebody else has the cause to tell.
  bool is_victim = false;
};

/// `is_launched`: started by a launcher, which restarts every exit code but
/// contract::kExitConfig. Pure.
Failure DescribeFailure(const std::exception_ptr& error, bool is_launched);

/// "fsdp-train: <line>", with the rank where there are several and the failure may be that of one.
std::string ConsoleLine(const Failure& failure, const WorkerEnvironment& environment);

/// Writes the error file and, on standard error, one line for one problem: a failure that all ranks
/// share is told by the first rank of the node, at once. The others, and victims of a lost peer,
/// wait about a second to be ended with the job; a rank that is still there then has the problem
/// alone and tells it. Returns the exit code.
int ReportFailure(const Failure& failure, const WorkerEnvironment& environment);

}  // namespace fsdprun::worker
