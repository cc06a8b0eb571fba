#include "launcher/run/tls_setup.h"

#include "base/status_macros.h"

namespace fsdprun {

absl::StatusOr<std::shared_ptr<const Tls>> MakeTls(const LaunchPlan& plan) {
  const TlsFiles files{plan.tls_certificate, plan.tls_key, plan.tls_ca};
  if (!files.any()) {
    return std::shared_ptr<const Tls>();
  }
  const bool has_others = plan.is_agent || plan.is_coordinator || plan.HasAgents() ||
                          !plan.coordinators.empty() || !plan.attached_session.empty();
  if (plan.IsSingleNode() && !has_others) {
    RETURN_IF_ERROR(LoadTls(files).status());
    return std::shared_ptr<const Tls>();
  }
  return Tls::Make(files);
}

absl::Status CheckCanServe(const Tls* tls) {
  return tls == nullptr || tls->can_serve()
             ? absl::OkStatus()
             : absl::InvalidArgumentError(
                   "--tls-ca: this node hosts the coordinator, which must show a certificate: give "
                   "it --tls-cert and --tls-key too");
}

}  // namespace fsdprun
