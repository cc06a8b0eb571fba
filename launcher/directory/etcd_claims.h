#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/mutex.h"
#include "base/repeater.h"
#include "launcher/directory/claim_store.h"
#include "launcher/etcd/etcd_client.h"

namespace fsdprun {

/// A claim as a key in etcd, with a lease that its holder renews: the key of one that is gone goes
/// by itself. An etcd that is gone is of no consequence while workers run: the claim is renewed
/// when it is back, or made anew if it has expired and nobody else has made one.
class EtcdClaims : public ClaimStore {
 public:
  /// `on_taken`: see DirectoryContext.
  EtcdClaims(std::unique_ptr<EtcdClient> client, std::string key, std::function<void()> on_taken)
      : client_(std::move(client)), key_(std::move(key)), on_taken_(std::move(on_taken)) {}

  absl::StatusOr<std::optional<Claim>> Read() override;
  absl::StatusOr<bool> Replace(const std::optional<Claim>& found, const Claim& mine) override;
  absl::StatusOr<bool> Confirm(const Claim& mine) override;
  absl::Status Release(const Claim& mine, const std::optional<Claim>& last) override;
  std::optional<std::string> RenewalSign() const override { return std::nullopt; }
  std::string Where() const override;

 private:
  void Renew(const Claim& mine);

  const std::unique_ptr<EtcdClient> client_;
  const std::string key_;
  const std::function<void()> on_taken_;
  /// Held while the claim is renewed, which may be on two threads.
  Mutex mu_;
  int64_t lease_ ABSL_GUARDED_BY(mu_) = 0;
  /// Another has had the claim since.
  bool is_lost_ ABSL_GUARDED_BY(mu_) = false;
  std::unique_ptr<Repeater> renewal_;
};

}  // namespace fsdprun
