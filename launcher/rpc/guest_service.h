#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "absl/status/status.h"

namespace fsdprun {

/// Whether who makes a call may make it. Any thread.
using CallCheck = std::function<absl::Status(const grpc::CallbackServerContext& call)>;

/// A service that a server has beside its own. Thread: loop thread.
class GuestService {
 public:
  virtual ~GuestService() = default;
  virtual grpc::Service* service() = 0;
  /// Ends its calls with `status`; before the server ends, and nothing is asked of it after that.
  virtual void End(const absl::Status& status) = 0;
};

}  // namespace fsdprun
