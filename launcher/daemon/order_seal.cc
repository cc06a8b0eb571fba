#include "launcher/daemon/order_seal.h"

#include "absl/strings/str_cat.h"
#include "agent/rpc/call_proof.h"

namespace fsdprun {
namespace {

// The numbers have one length, so that no two calls give the same text.
std::string Text(absl::string_view purpose, const CallNonces& nonces, absl::string_view rest) {
  return absl::StrCat(purpose, absl::string_view("\0", 1), nonces.launcher.size(), ":",
                      nonces.launcher, nonces.daemon.size(), ":", nonces.daemon, rest);
}

}  // namespace

std::string DaemonAnswer(const std::string& token, const CallNonces& nonces) {
  return HmacHex(token, Text("fsdprun daemon", nonces, ""));
}

std::string OrderSeal(const std::string& token, const CallNonces& nonces, absl::string_view order) {
  return HmacHex(token, Text("fsdprun order", nonces, order));
}

std::string TokenOfJob(const std::string& token, absl::string_view run_id) {
  return token == kNoToken ? token
                           : HmacHex(token, absl::StrCat("fsdprun job of daemons",
                                                         absl::string_view("\0", 1), run_id));
}

}  // namespace fsdprun
