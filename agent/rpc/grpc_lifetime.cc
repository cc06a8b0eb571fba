#include "agent/rpc/grpc_lifetime.h"

#include <grpc/grpc.h>

namespace fsdprun {

void BeginGrpc() {
  [[maybe_unused]] static const bool has_begun = [] {
    grpc_init();
    return true;
  }();
}

}  // namespace fsdprun
