#pragma once

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::support {

/// Any failure of a StoreClient call; what() names operation, key, address and cause.
class StoreError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
/// The call's time ran out; the connection is still usable only if the call was Wait or Get.
class StoreTimeout : public StoreError {
 public:
  using StoreError::StoreError;
};

/// Blocking client of a TCPStore server (PyTorch's or agent/store). Numeric addresses only and no
/// name look-up of any kind, so that a broken resolver cannot stall it. Keys get the prefix that
/// TCPStore gives them: what this client sets, a torch.distributed.TCPStore reads under the same
/// name. Thread: one call at a time; use one client per thread (a blocking Wait would stall every
/// other caller). Errors: StoreError, StoreTimeout. Every call ends by its deadline.
class StoreClient {
 public:
  using Bytes = std::vector<uint8_t>;
  using Milliseconds = std::chrono::milliseconds;

  /// Connects, retrying until `timeout` (the server may start later than its clients). `timeout` is
  /// also the default for calls. Errors: StoreError at once when `host` is not numeric ("localhost"
  /// is taken as 127.0.0.1, then ::1).
  StoreClient(const std::string& host, int port, Milliseconds timeout);
  ~StoreClient();
  StoreClient(StoreClient&& other) noexcept;
  StoreClient& operator=(StoreClient&& other) noexcept;
  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;

  void SetTimeout(Milliseconds timeout) { timeout_ = timeout; }
  Milliseconds timeout() const { return timeout_; }
  const std::string& host() const { return host_; }
  int port() const { return port_; }

  void Set(const std::string& key, const Bytes& value);
  void Set(const std::string& key, std::string_view value);
  /// Waits until `key` exists, then returns its value.
  Bytes Get(const std::string& key);
  Bytes Get(const std::string& key, Milliseconds timeout);
  /// Adds to a decimal counter (a missing one is 0) and returns the sum.
  int64_t Add(const std::string& key, int64_t amount);
  /// Returns when all keys exist.
  void Wait(const std::vector<std::string>& keys);
  void Wait(const std::vector<std::string>& keys, Milliseconds timeout);
  /// Whether all keys exist now.
  bool Check(const std::vector<std::string>& keys);
  /// Whether there was such a key.
  bool Delete(const std::string& key);
  /// Stores `desired` if the value is `expected`, or if the key is missing and `expected` is empty.
  /// Returns the value after the call (`expected` itself for a missing key that was not created).
  Bytes CompareSet(const std::string& key, const Bytes& expected, const Bytes& desired);
  /// Keys on the server, counted by the server.
  int64_t KeyCount();

 private:
  using TimePoint = std::chrono::steady_clock::time_point;

  void Connect(TimePoint deadline);
  void Handshake(TimePoint deadline);
  void SendAll(std::string_view bytes, TimePoint deadline, const char* operation);
  void ReceiveAll(void* out, size_t size, TimePoint deadline, const char* operation);
  Bytes ReceiveBytes(TimePoint deadline, const char* operation);
  void WaitUntil(const std::vector<std::string>& keys, TimePoint deadline);
  void CancelWait(const std::vector<std::string>& keys);
  void CloseFd();
  [[noreturn]] void Fail(const char* operation, const std::string& cause);

  std::string host_;
  int port_ = 0;
  Milliseconds timeout_{0};
  int fd_ = -1;
};

}  // namespace fsdprun::support
