#include "launcher/rpc/unused_connections.h"

#include <algorithm>
#include <utility>

namespace fsdprun {

// Most calls come from the youngest.
void UnusedConnections::Used(const std::string& peer) {
  const auto it = std::find_if(waiting_.rbegin(), waiting_.rend(), [&peer](const Waiting& waiting) {
    return waiting.connection.peer == peer;
  });
  if (it != waiting_.rend()) {
    waiting_.erase(std::next(it).base());
  }
}

std::vector<UnusedConnections::Connection> UnusedConnections::TakeExpired(MonoTime now) {
  std::vector<Connection> expired;
  while (!waiting_.empty() && waiting_.front().until <= now) {
    expired.push_back(std::move(waiting_.front().connection));
    waiting_.pop_front();
  }
  return expired;
}

}  // namespace fsdprun
