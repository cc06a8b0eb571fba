#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// The few calls of etcd's v3 API that a rendezvous needs. Each takes `timeout` at most, and ends
/// when `is_cancelled` returns true. Errors name the server; UNAVAILABLE may be retried.
/// Thread: any.
class EtcdClient {
 public:
  struct Options {
    /// `host:port`
    std::string target;
    EtcdOptions etcd;
    Duration timeout = std::chrono::seconds(5);
    std::function<bool()> is_cancelled;
  };

  /// Reads the certificates. Errors: INVALID_ARGUMENT naming the file.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(Options options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  absl::StatusOr<std::optional<std::string>> Get(const std::string& key);
  /// Puts `value`, or deletes the key (nullopt), if its value is `expected` (nullopt: if it does
  /// not exist). False if it is not.
  absl::StatusOr<bool> Exchange(const std::string& key, const std::optional<std::string>& expected,
                                const std::optional<std::string>& value, int64_t lease);
  /// The id of a lease: what is put with it goes when it has not been renewed for `seconds`.
  absl::StatusOr<int64_t> Grant(int64_t seconds);
  /// False if the lease has expired.
  absl::StatusOr<bool> Renew(int64_t lease);
  absl::Status Revoke(int64_t lease);

  const std::string& target() const { return options_.target; }

 private:
  struct Stubs;

  explicit EtcdClient(Options options);
  absl::Status ToStatus(int code, const std::string& message) const;

  const Options options_;
  std::unique_ptr<Stubs> stubs_;
};

}  // namespace fsdprun
