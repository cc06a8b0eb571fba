#include "launcher/directory/etcd_claims.h"

#include <utility>

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
  std::optional<std::string> expected;
  if (found.has_value()) {
    expected = EncodeClaim(*found);
  }
  renewal_.reset();
  MutexLock lock(mu_);
  is_lost_ = false;
  ASSIGN_OR_RETURN(lease_, client_->Grant(mine.lease_seconds));
  ASSIGN_OR_RETURN(const bool is_ours,
                   client_->Exchange(key_, expected, EncodeClaim(mine), lease_));
  if (is_ours) {
    renewal_ = std::make_unique<Repeater>(kRenewalInterval, [this, mine] { Renew(mine); });
  } else {
    client_->Revoke(lease_).IgnoreError();
  }
  return is_ours;
}

// Nothing is remembered of the key but its lease, and the key is looked at each time: what was lost
// on the way the last time, or what somebody has deleted, is put there again. Not after another has
// had it: who has been told so takes nobody in any more.
absl::StatusOr<bool> EtcdClaims::Confirm(const Claim& mine) {
  MutexLock lock(mu_);
  if (is_lost_) {
    return false;
  }
  ASSIGN_OR_RETURN(const bool is_renewed, client_->Renew(lease_));
  if (!is_renewed) {
    // The key has gone with it.
    ASSIGN_OR_RETURN(lease_, client_->Grant(mine.lease_seconds));
  }
  ASSIGN_OR_RETURN(std::optional<Claim> found, Read());
  if (!found.has_value()) {
    RETURN_IF_ERROR(client_->Exchange(key_, std::nullopt, EncodeClaim(mine), lease_).status());
    ASSIGN_OR_RETURN(found, Read());
  }
  if (!found.has_value()) {
    return absl::UnavailableError(
        absl::StrCat(Where(),
                     ": this launcher has put its claim there, and it was deleted at once; "
                     "see who deletes it"));
  }
  is_lost_ = *found != mine;
  return !is_lost_;
}

// On a thread of its own. What fails now may not the next time.
void EtcdClaims::Renew(const Claim& mine) {
  {
    MutexLock lock(mu_);
    if (is_lost_) {
      return;  // Whoever asked was told.
    }
  }
  const absl::StatusOr<bool> is_ours = Confirm(mine);
  if (!is_ours.ok() || *is_ours) {
    return;
  }
  Log(LogLevel::kWarning,
      absl::StrCat(Where(),
                   ": another launcher has taken this run id while etcd could not be reached from "
                   "here; this job ends before it would start workers again, and nobody finds it "
                   "there"));
  if (on_taken_) {
    on_taken_();
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
  MutexLock lock(mu_);
  return client_->Revoke(lease_);
}

}  // namespace fsdprun
