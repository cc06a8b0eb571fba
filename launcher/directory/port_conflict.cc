#include "launcher/directory/port_conflict.h"

#include <chrono>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "launcher/directory/http2_probe.h"
#include "launcher/directory/listener.h"

namespace fsdprun {
namespace {

constexpr Duration kProbeTimeout = std::chrono::milliseconds(1000);

}  // namespace

absl::Status WithPortHolder(const absl::Status& status, uint16_t port, absl::string_view advice) {
  const std::string holder = PortHolder(port);
  return absl::AlreadyExistsError(
      absl::StrCat(status.message(), holder.empty() ? "" : absl::StrCat(" (held by ", holder, ")"),
                   "; ", advice));
}

absl::Status CheckPortHolder(const NumericEndpoint& endpoint, bool uses_tls) {
  absl::Status probe = ProbeCoordinator(endpoint, uses_tls, MonoNow() + kProbeTimeout);
  if (probe.ok() || absl::IsPermissionDenied(probe)) {
    return probe;
  }
  if (absl::IsUnavailable(probe)) {
    const std::string holder = PortHolder(endpoint.port);
    if (!holder.empty() && !absl::StrContains(holder, "(fsdprun)")) {
      probe = absl::FailedPreconditionError(
          absl::StrCat("the program that listens on ", ToString(endpoint), " is no coordinator"));
    }
  }
  return absl::IsFailedPrecondition(probe)
             ? WithPortHolder(probe, endpoint.port, "choose another port for the rendezvous")
             : absl::OkStatus();
}

}  // namespace fsdprun
