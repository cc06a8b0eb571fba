#include "launcher/directory/etcd_claims.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int64_t kLeaseSeconds = 15;
constexpr Duration kRenewInterval = std::chrono::seconds(4);

}  // namespace

EtcdClaims::~EtcdClaims() { StopRenewing(); }

std::string EtcdClaims::Where() const {
  return absl::StrCat("etcd at ", client_->target(), ", key ", key_);
}

absl::StatusOr<std::optional<Claim>> EtcdClaims::Read() {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, client_->Get(key_));
  if (!text.has_value()) {
    return std::optional<Claim>();
  }
  absl::StatusOr<Claim> claim = DecodeClaim(*text);
  if (!claim.ok()) {
    return absl::FailedPreconditionError(
        absl::StrCat(Where(), ": its value cannot be used: ", claim.status().message(),
                     "; delete it, or give another --rdzv-id"));
  }
  return std::optional<Claim>(*std::move(claim));
}

absl::StatusOr<bool> EtcdClaims::Replace(const std::optional<Claim>& found, const Claim& mine) {
  const std::string text = EncodeClaim(mine);
  std::optional<std::string> expected;
  if (found.has_value()) {
    expected = EncodeClaim(*found);
  }
  ASSIGN_OR_RETURN(lease_, client_->Grant(kLeaseSeconds));
  ASSIGN_OR_RETURN(const bool is_ours, client_->Exchange(key_, expected, text, lease_));
  if (is_ours) {
    renewer_ = std::thread([this, text] { KeepAlive(text); });
  } else {
    client_->Revoke(lease_).IgnoreError();
  }
  return is_ours;
}

void EtcdClaims::KeepAlive(const std::string& text) {
  for (;;) {
    {
      MutexLock lock(mu_);
      if (changed_.WaitUntil(mu_, MonoNow() + kRenewInterval,
                             [this]() ABSL_NO_THREAD_SAFETY_ANALYSIS { return is_ending_; })) {
        return;
      }
    }
    RenewOnce(text);
  }
}

void EtcdClaims::RenewOnce(const std::string& text) {
  const absl::StatusOr<bool> is_renewed = client_->Renew(lease_);
  if (!is_renewed.ok() || *is_renewed) {
    return;
  }
  const absl::StatusOr<int64_t> lease = client_->Grant(kLeaseSeconds);
  if (!lease.ok()) {
    return;
  }
  lease_ = *lease;
  const absl::StatusOr<bool> is_ours = client_->Exchange(key_, std::nullopt, text, lease_);
  if (is_ours.ok() && !*is_ours) {
    Log(LogLevel::kWarning,
        absl::StrCat(Where(),
                     ": another launcher has taken this run id while etcd could not be "
                     "reached from here; this job goes on, but nobody finds it there"));
  }
}

absl::Status EtcdClaims::Release(const Claim& mine, const std::optional<Claim>& last) {
  StopRenewing();
  std::optional<std::string> text;
  int64_t lease = 0;
  if (last.has_value()) {
    text = EncodeClaim(*last);
    ASSIGN_OR_RETURN(lease, client_->Grant(kClosedSeconds));
  }
  RETURN_IF_ERROR(client_->Exchange(key_, EncodeClaim(mine), text, lease).status());
  return client_->Revoke(lease_);
}

void EtcdClaims::StopRenewing() {
  {
    MutexLock lock(mu_);
    is_ending_ = true;
    changed_.NotifyAll();
  }
  if (renewer_.joinable()) {
    renewer_.join();
  }
}

}  // namespace fsdprun
