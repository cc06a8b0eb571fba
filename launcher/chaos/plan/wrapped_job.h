#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "launcher/chaos/plan/powers.h"
#include "launcher/cli/raw_options.h"

namespace fsdprun::chaos {

// Note [How a job of several nodes is started]
// A command line that is meant for each node of a job that meets by c10d is started once for each
// node, all on this machine. So that everything of the job can be killed and started again, its
// coordinator gets a process of its own, with a journal; and so that an agent can be cut off
// without root, each launcher reaches the coordinator through a port of this program. What the
// command says of the meeting place is replaced. Any other command is started once, as it is.

/// A command that is to be started.
struct WrappedJob {
  Form form = Form::kOneLauncher;
  std::vector<std::string> command;
  /// Of kNodes: what the command says; the same with what PET_* variables say where it says
  /// nothing; and how many launchers there are.
  RawOptions options;
  RawOptions said;
  int nodes = 1;
  std::string run_id;
};

/// `nodes`: of --nodes, 0 without. `run_id`: for a job that names none. `environment`: of what is
/// started. Pure. Errors: of the launcher's command line; OUT_OF_RANGE for a job whose nodes do not
/// meet by c10d.
absl::StatusOr<WrappedJob> ReadWrappedJob(const std::vector<std::string>& command, int nodes,
                                          const std::string& run_id,
                                          const Environment& environment = {});

/// Of a job of kNodes: the coordinator's process, which listens on `port` of this machine. Its
/// journal is the one that the command names, else `journal`.
std::vector<std::string> CoordinatorCommand(const WrappedJob& job, uint16_t port,
                                            const std::string& journal);
/// The launcher of one of its nodes, which finds the coordinator at `port`.
std::vector<std::string> NodeCommand(const WrappedJob& job, uint16_t port);

}  // namespace fsdprun::chaos
