#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>

namespace fsdprun::worker {

/// An invalid environment variable. what() is one line naming variable, value and expectation.
class EnvironmentError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

/// The worker's environment (torchrun's variables and ours), parsed once at the start of main.
struct WorkerEnvironment {
  int rank = 0;
  int local_rank = 0;
  int world_size = 1;
  int local_world_size = 1;
  int group_rank = 0;
  int group_world_size = 1;
  int role_rank = 0;
  int role_world_size = 1;
  std::string role_name = "default";
  /// Empty and 0 in a single-process world.
  std::string master_addr;
  int master_port = 0;
  int restart_count = 0;
  int max_restarts = 0;
  std::string run_id;
  /// A store server already runs at master_addr:master_port; this process must only be its client.
  bool uses_agent_store = false;
  /// Path of the error file; empty if none is requested.
  std::string error_file;
  uint64_t generation = 0;
  std::string job_id;
  /// Inherited control socket, or -1.
  int control_fd = -1;
  /// True when the launcher draws the progress line, so this process must print none.
  bool launcher_draws_progress = false;
  /// Whether the terminal draws UTF-8, as LC_ALL, LC_CTYPE or LANG says.
  bool is_utf8 = false;
  /// Whether a launcher has started this process. Without one, and where it has left the ranks out,
  /// it is a single-process world.
  bool is_launched = false;
};

/// Parses a whole environment. With neither RANK nor WORLD_SIZE set it is a single-process world.
/// Otherwise RANK and WORLD_SIZE are required, MASTER_ADDR and MASTER_PORT too when WORLD_SIZE > 1,
/// and the rest have torchrun's single-node defaults (LOCAL_RANK = RANK, LOCAL_WORLD_SIZE =
/// WORLD_SIZE). Errors: EnvironmentError.
WorkerEnvironment ParseWorkerEnvironment(const std::map<std::string, std::string>& variables);

/// Copies `environ`; a name that occurs twice keeps its first value, as getenv does.
std::map<std::string, std::string> ReadProcessEnvironment();

}  // namespace fsdprun::worker
