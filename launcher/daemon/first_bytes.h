#pragma once

#include <functional>
#include <map>
#include <string>

#include "base/event_loop.h"
#include "base/mono_time.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// Accepted connections of which nothing has been heard yet: by its first byte a door tells TLS
/// from what is none. Thread: loop thread only.
class FirstBytes {
 public:
  /// How long a connection may be silent.
  static constexpr Duration kSilence = std::chrono::seconds(5);

  struct Hooks {
    /// Something can be read of it, or its end; nothing was read.
    std::function<void(UniqueFd connection)> on_bytes;
    /// One was closed because it was silent; to be logged.
    std::function<void(const std::string& what)> on_refused;
  };

  FirstBytes(EventLoop& loop, Hooks hooks) : loop_(loop), hooks_(std::move(hooks)) {}
  /// Closes them.
  ~FirstBytes();
  FirstBytes(const FirstBytes&) = delete;
  FirstBytes& operator=(const FirstBytes&) = delete;

  void Add(UniqueFd connection);

 private:
  struct Waiting {
    UniqueFd connection;
    EventLoop::TimerId timer = 0;
  };
  UniqueFd Take(int fd);

  EventLoop& loop_;
  const Hooks hooks_;
  /// By descriptor.
  std::map<int, Waiting> waiting_;
};

}  // namespace fsdprun
