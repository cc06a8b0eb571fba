#pragma once

#include <cstdint>
#include <vector>

#include "base/mono_time.h"

namespace fsdprun::doctor {

/// How much is to be moved over connections, of which all get what they take.
struct TransferSize {
  /// 0: as much as passes in `time`.
  uint64_t bytes = 0;
  Duration time{};
};

struct Transferred {
  uint64_t bytes = 0;
  /// From the first byte to the last.
  Duration time{};
  /// It was not whole, and nothing more came for seconds.
  bool stalled = false;

  /// 0 if nothing can be said.
  double bits_per_second() const {
    return time.count() > 0 ? static_cast<double>(bytes) * 8 / ToSeconds(time) : 0;
  }
};

// Both end early when `stop_fd` is readable or all connections are broken. What is sent means
// nothing, and what is received is thrown away. Sockets do not block.

void SendOver(const std::vector<int>& sockets, const TransferSize& size, int stop_fd);
Transferred ReceiveOver(const std::vector<int>& sockets, const TransferSize& size, int stop_fd);

/// Of TCP on this end, since the connections began.
struct SegmentCounts {
  uint64_t sent = 0;
  uint64_t retransmitted = 0;
};
SegmentCounts CountSegments(const std::vector<int>& sockets);

}  // namespace fsdprun::doctor
