#include "launcher/directory/etcd_claims.h"

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"

namespace fsdprun {

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
  renewal_.reset();
  lease_seconds_ = mine.lease_seconds;
  ASSIGN_OR_RETURN(lease_, client_->Grant(lease_seconds_));
  ASSIGN_OR_RETURN(const bool is_ours, client_->Exchange(key_, expected, text, lease_));
  if (is_ours) {
    renewal_ = std::make_unique<Renewal>([this, text] { Renew(text); });
  } else {
    client_->Revoke(lease_).IgnoreError();
  }
  return is_ours;
}

void EtcdClaims::Renew(const std::string& text) {
  const absl::StatusOr<bool> is_renewed = client_->Renew(lease_);
  if (!is_renewed.ok() || *is_renewed) {
    return;
  }
  const absl::StatusOr<int64_t> lease = client_->Grant(lease_seconds_);
  if (!lease.ok()) {
    return;
  }
  lease_ = *lease;
  const absl::StatusOr<bool> is_ours = client_->Exchange(key_, std::nullopt, text, lease_);
  if (is_ours.ok() && !*is_ours) {
    Log(LogLevel::kWarning,
        absl::StrCat(Where(),
                     ": another launcher has taken this run id while etcd could not be "
                     "reached from here; this job goes on until it next waits for nodes, "
                     "but nobody finds it there"));
  }
}

absl::Status EtcdClaims::Release(const Claim& mine, const std::optional<Claim>& last) {
  renewal_.reset();
  std::optional<std::string> text;
  int64_t lease = 0;
  if (last.has_value()) {
    text = EncodeClaim(*last);
    ASSIGN_OR_RETURN(lease, client_->Grant(kClosedSeconds));
  }
  RETURN_IF_ERROR(client_->Exchange(key_, EncodeClaim(mine), text, lease).status());
  return client_->Revoke(lease_);
}

}  // namespace fsdprun
