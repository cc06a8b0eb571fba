#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"
#include "agent/store/store_server.h"
#include "base/event_loop.h"
#include "base/mutex.h"
#include "base/unique_fd.h"

namespace fsdprun {

/// A StoreServer on a thread of its own, so that what its clients ask for delays nothing that the
/// owner's loop decides. A call waits for the reaction that the server is in: for what one client
/// has asked for, not for all. Thread: the owner's loop.
class StoreThread {
 public:
  /// `on_foreign` is called on `loop`, which must outlive it.
  StoreThread(EventLoop& loop, const StoreServer::Limits& limits,
              StoreServer::ForeignConnection on_foreign = nullptr);
  /// Ends listening and every connection.
  ~StoreThread();
  StoreThread(const StoreThread&) = delete;
  StoreThread& operator=(const StoreThread&) = delete;

  // As of StoreServer.
  absl::StatusOr<int> Listen(const std::string& host, int port);
  absl::StatusOr<int> ListenOn(UniqueFd bound_socket);
  void Reset();
  void ExpectClients(size_t count);
  int port();

 private:
  /// Runs `call` on the server's thread and waits for its end.
  void Do(const std::function<void()>& call) ABSL_LOCKS_EXCLUDED(mu_);

  /// Checked by what is posted to the owner's loop.
  const std::shared_ptr<bool> is_live_;
  EventLoop store_loop_;
  StoreServer server_;

  Mutex mu_;
  CondVar done_;
  bool is_done_ ABSL_GUARDED_BY(mu_) = false;

  /// The last, as it uses the others.
  std::thread thread_;
};

}  // namespace fsdprun
