#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "fsdp_runtime/store/store_error.h"

namespace fsdp {

class StoreConnection;

/// A client of the key-value store that torchrun, fsdprun and c10d::TCPStore serve, with the same
/// protocol and key names, so that it interoperates with Python clients. Unlike c10d's client it
/// never does a reverse DNS lookup, which can delay a connect by seconds. Thread: any; calls of one
/// client are serialised. A wait that has expired is taken back, and the connection kept. Any other
/// failed call drops it; the next call opens a new one, and fails within seconds if the server does
/// not answer, whatever its deadline. Errors: StoreError that names the server, the operation and
/// the key; StoreTimeout if keys are not there by the deadline, StoreSilence if nobody answers. A
/// value has longer than the deadline of its call if it is large: 256 KB per second, at least.
class StoreClient {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Connects, retrying while nothing listens, for at most `timeout`; that is also the timeout of
  /// every call without a deadline. `host`: an address, or a name to look up.
  StoreClient(std::string host, int port, std::chrono::milliseconds timeout);
  /// The same with two times: `connect_timeout` to connect here, `call_timeout` for each such call.
  StoreClient(std::string host, int port, std::chrono::milliseconds connect_timeout,
              std::chrono::milliseconds call_timeout);
  ~StoreClient();
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void set(const std::string& key, std::string_view value);
  /// The same; returns when the server has the value.
  void set_acknowledged(const std::string& key, std::string_view value);
  /// Waits until the key exists.
  std::string get(const std::string& key, TimePoint deadline);
  void wait(const std::vector<std::string>& keys, TimePoint deadline);
  bool check(const std::vector<std::string>& keys);
  /// Adds to the decimal value of `key` (0 if missing) and returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  /// Sets `desired` if the value is `expected`; returns the value afterwards. A missing key equals
  /// an empty `expected`.
  std::string compare_set(const std::string& key, std::string_view expected,
                          std::string_view desired);
  bool delete_key(const std::string& key);
  /// In one round trip; missing keys are no error.
  void delete_keys(const std::vector<std::string>& keys);
  int64_t num_keys();
  void append(const std::string& key, std::string_view value);
  std::vector<std::string> multi_get(const std::vector<std::string>& keys, TimePoint deadline);
  void multi_set(const std::vector<std::string>& keys, const std::vector<std::string>& values);

  const std::string& host() const { return host_; }
  int port() const { return port_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  TimePoint deadline() const { return std::chrono::steady_clock::now() + timeout_; }
  /// The numeric address of this machine on the connection to the server.
  std::string local_address();

 private:
  std::string described(const char* operation, const std::string& key) const;
  std::unique_ptr<StoreConnection> dial(TimePoint deadline);
  template <typename Call>
  auto call(const char* operation, const std::string& key, TimePoint deadline, Call&& body);

  const std::string host_;
  const int port_;
  const std::chrono::milliseconds timeout_;
  std::mutex mu_;
  std::unique_ptr<StoreConnection> connection_;  // guarded by mu_; null after a failure
  bool was_connected_ = false;                   // guarded by mu_
};

}  // namespace fsdp
