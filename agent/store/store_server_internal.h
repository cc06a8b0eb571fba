#pragma once

// Shared by the translation units of StoreServer only.

#include <cstddef>
#include <cstdint>
#include <string>

#include "agent/store/store_server.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"

namespace fsdprun {

struct StoreServer::Connection {
  uint64_t id = 0;
  UniqueFd fd;
  bool is_validated = false;
  /// Connected before the last Reset() and silent until then: may be an agent of the coordinator's
  /// port, but no client of the present generation.
  bool predates_reset = false;
  std::string incoming;
  /// The request at the front cannot be complete with fewer bytes.
  size_t needed = 1;
  std::string replies;
  size_t replies_sent = 0;
  /// Its part of StoreServer::reply_bytes_.
  size_t counted_reply_bytes = 0;
  bool watches_output = false;
  /// A limit was exceeded or a value cannot be what the operation needs; to be dropped.
  bool is_broken = false;
  EventLoop::TimerId handshake_timer = 0;

  size_t PendingReplyBytes() const { return replies.size() - replies_sent; }
};

}  // namespace fsdprun
