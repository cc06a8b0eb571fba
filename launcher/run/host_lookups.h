#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "agent/local/file_thread.h"
#include "base/event_loop.h"

namespace fsdprun {

/// Finds the addresses of many hosts, several at a time, on threads of its own: a name that no name
/// server answers for holds up no other. Thread: loop thread only.
class HostLookups {
 public:
  using Addresses = absl::StatusOr<std::vector<std::string>>;
  /// On any thread. Ends early when `is_cancelled` returns true.
  using LookUp =
      std::function<Addresses(const std::string& host, const std::function<bool()>& is_cancelled)>;
  static constexpr size_t kAtOnce = 32;

  /// LookUpHost() with a bound of 10 s.
  explicit HostLookups(EventLoop& loop);
  HostLookups(EventLoop& loop, LookUp look_up);
  /// Cancels what is being looked up.
  ~HostLookups();
  HostLookups(const HostLookups&) = delete;
  HostLookups& operator=(const HostLookups&) = delete;

  /// `on_found` runs on the loop, once for each of `hosts`, with its index, as soon as that is
  /// known. Call once.
  void Start(std::vector<std::string> hosts,
             std::function<void(size_t index, const Addresses& addresses)> on_found);

 private:
  void StartNext(FileThread& thread);

  EventLoop& loop_;
  const LookUp look_up_;
  const std::shared_ptr<std::atomic<bool>> is_cancelled_ =
      std::make_shared<std::atomic<bool>>(false);
  std::vector<std::string> hosts_;
  std::function<void(size_t, const Addresses&)> on_found_;
  size_t next_ = 0;
  std::vector<std::unique_ptr<FileThread>> threads_;
};

}  // namespace fsdprun
