#include "agent/process/orphaned_spool.h"

#include <poll.h>

#include <filesystem>
#include <system_error>

namespace fsdprun::keeper {
namespace {

/// A process that is being killed closes its sockets before it counts as ended.
constexpr int kEndTakesMs = 1000;

}  // namespace

void RemoveLeavingsOfDead(int launcher_pidfd, const std::vector<std::string>& directories) {
  pollfd launcher{.fd = launcher_pidfd, .events = POLLIN, .revents = 0};
  if (launcher_pidfd < 0 || ::poll(&launcher, 1, kEndTakesMs) != 1) {
    return;
  }
  for (const std::string& directory : directories) {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }
}

}  // namespace fsdprun::keeper
