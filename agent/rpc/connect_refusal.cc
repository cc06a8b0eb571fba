#include "agent/rpc/connect_refusal.h"

#include <cerrno>

#include "absl/strings/match.h"
#include "base/error_text.h"

namespace fsdprun {

// gRPC has no code for it, but ends its message with the system's text for connect()'s error.
bool IsConnectRefusal(const absl::Status& status) {
  return absl::IsUnavailable(status) &&
         absl::StrContains(status.message(), ErrorText(ECONNREFUSED));
}

}  // namespace fsdprun
