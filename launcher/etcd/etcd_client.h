#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mono_time.h"
#include "launcher/cli/launch_plan.h"

namespace fsdprun {

/// A change of several keys, made as a whole if all that is expected is so, or not at all.
struct EtcdChange {
  struct Expect {
    std::string key;
    /// nullopt: the key does not exist.
    std::optional<std::string> value;
  };
  struct Put {
    std::string key;
    std::string value;
    /// 0: none.
    int64_t lease = 0;
  };
  std::vector<Expect> expects;
  std::vector<Put> puts;
  std::vector<std::string> deletes;
  /// All keys that begin so; none of them is put.
  std::vector<std::string> deletes_below;
};

/// The few calls of etcd's v3 API that are needed here. Each takes `timeout` at most, and ends when
/// `is_cancelled` returns true. Errors name the server; UNAVAILABLE may be retried: whether a
/// change was made is not known then. Thread: any.
class EtcdClient {
 public:
  struct Options {
    /// `host:port` each: members of one etcd, which are tried in turn; not empty.
    std::vector<std::string> targets;
    EtcdOptions etcd;
    Duration timeout = std::chrono::seconds(5);
    std::function<bool()> is_cancelled;
    /// What to do about an error.
    std::string advice = "check --rdzv-endpoint, and protocol and certificates in --rdzv-conf";
  };
  struct Entry {
    std::string value;
    /// 0: none.
    int64_t lease = 0;
  };

  /// Reads the certificates. Errors: INVALID_ARGUMENT naming the file.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Make(Options options);
  ~EtcdClient();
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  absl::StatusOr<std::optional<Entry>> Read(const std::string& key);
  absl::StatusOr<std::optional<std::string>> Get(const std::string& key);
  /// False if something is not as expected.
  absl::StatusOr<bool> Commit(const EtcdChange& change);
  /// Puts `value`, or deletes the key (nullopt), if its value is `expected` (nullopt: if it does
  /// not exist). False if it is not.
  absl::StatusOr<bool> Exchange(const std::string& key, const std::optional<std::string>& expected,
                                const std::optional<std::string>& value, int64_t lease);
  /// The id of a lease: what is put with it goes when it has not been renewed for `seconds`.
  absl::StatusOr<int64_t> Grant(int64_t seconds);
  /// False if the lease has expired.
  absl::StatusOr<bool> Renew(int64_t lease);
  /// Until it expires unless it is renewed; negative if it has.
  absl::StatusOr<int64_t> SecondsLeft(int64_t lease);
  absl::Status Revoke(int64_t lease);

  /// All targets, for people.
  std::string target() const;

 private:
  struct Member;

  explicit EtcdClient(Options options);
  template <class Start>
  absl::Status Call(Start start);
  absl::Status ToStatus(int code, const std::string& message) const;

  const Options options_;
  std::vector<std::unique_ptr<Member>> members_;
  /// Where the next call begins.
  std::atomic<size_t> first_{0};
};

}  // namespace fsdprun
