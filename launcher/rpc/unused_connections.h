#pragma once

#include <deque>
#include <string>
#include <vector>

#include "base/mono_time.h"

namespace fsdprun {

/// Connections from which no call has come yet: of a stranger, of a client that stops in the middle
/// of a handshake, or of one that does not get through it. Pure: no clock.
class UnusedConnections {
 public:
  struct Connection {
    int fd = -1;
    /// `10.0.0.7:4711`
    std::string peer;
  };

  explicit UnusedConnections(Duration patience) : patience_(patience) {}

  void Add(Connection connection, MonoTime now) {
    waiting_.push_back({std::move(connection), now + patience_});
  }
  /// A call has come from there.
  void Used(const std::string& peer);
  /// Those whose time is over by `now`, which are forgotten.
  std::vector<Connection> TakeExpired(MonoTime now);
  size_t size() const { return waiting_.size(); }
  /// MonoTime::max(): there is none.
  MonoTime next() const { return waiting_.empty() ? MonoTime::max() : waiting_.front().until; }

 private:
  struct Waiting {
    Connection connection;
    MonoTime until;
  };

  const Duration patience_;
  /// The oldest first.
  std::deque<Waiting> waiting_;
};

}  // namespace fsdprun
