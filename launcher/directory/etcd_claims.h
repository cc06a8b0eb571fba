#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "launcher/directory/claim_store.h"
#include "launcher/directory/etcd_client.h"
#include "launcher/directory/renewal.h"

namespace fsdprun {

/// A claim as a key in etcd, with a lease that its holder renews: the key of one that is gone goes
/// by itself. An etcd that is gone is of no consequence to a job that has found together: the claim
/// is renewed when it is back, or made anew if it has expired and nobody else has made one.
class EtcdClaims : public ClaimStore {
 public:
  EtcdClaims(std::unique_ptr<EtcdClient> client, std::string key)
      : client_(std::move(client)), key_(std::move(key)) {}

  absl::StatusOr<std::optional<Claim>> Read() override;
  absl::StatusOr<bool> Replace(const std::optional<Claim>& found, const Claim& mine) override;
  absl::Status Release(const Claim& mine, const std::optional<Claim>& last) override;
  std::optional<std::string> RenewalSign() const override { return std::nullopt; }
  std::string Where() const override;

 private:
  void Renew(const std::string& text);

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
  int64_t lease_seconds_ = 0;
  /// The renewal's, while it runs.
  int64_t lease_ = 0;
  std::unique_ptr<Renewal> renewal_;
};

}  // namespace fsdprun
