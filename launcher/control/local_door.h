#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/event_loop.h"
#include "base/unique_fd.h"
#include "launcher/control/control_desk.h"
#include "launcher/control/control_service.h"
#include "launcher/control/job_file.h"

namespace grpc {
class Server;
}

namespace fsdprun {

/// Where programs of the same user on this machine ask about a job: a socket in a private folder,
/// named by a JobFile beside it. gRPC is started with the first that asks, so that a launch does
/// not take longer for it. Thread: loop thread.
class LocalDoor {
 public:
  /// `entry.socket` is filled in here. `desk` must outlive it. Errors: UNAVAILABLE.
  static absl::StatusOr<std::unique_ptr<LocalDoor>> Open(EventLoop& loop, const std::string& folder,
                                                         JobEntry entry, ControlDesk& desk);
  ~LocalDoor();
  LocalDoor(const LocalDoor&) = delete;
  LocalDoor& operator=(const LocalDoor&) = delete;

 private:
  LocalDoor(EventLoop& loop, UniqueFd listener, JobFile file, ControlDesk& desk);

  void Accept();
  bool StartServer();

  // Constant after construction.
  EventLoop& loop_;
  const UniqueFd listener_;
  const JobFile file_;
  ControlDesk& desk_;

  // Owned by the loop thread.
  std::unique_ptr<ControlService> service_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace fsdprun
