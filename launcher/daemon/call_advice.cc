#include "launcher/daemon/call_advice.h"

#include "absl/strings/str_cat.h"
#include "agent/rpc/connect_refusal.h"

namespace fsdprun {

std::string WithAdvice(const absl::Status& why) {
  std::string text(why.message());
  switch (why.code()) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      return IsConnectRefusal(why)
                 ? "nothing listens there; start fsdp-agent --daemon on that host, or give the "
                   "port that it has"
                 : absl::StrCat(text,
                                "; see whether fsdp-agent --daemon runs on that host, and whether "
                                "this machine reaches it");
    case absl::StatusCode::kUnauthenticated:
      return absl::StrCat(text,
                          "; give this launcher and the daemon the same token: --token-file, "
                          "FSDPRUN_TOKEN, or a common ~/.config/fsdprun/secret");
    default:
      return text;
  }
}

}  // namespace fsdprun
