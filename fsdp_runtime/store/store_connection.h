#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "fsdp_runtime/store/store_error.h"

namespace fsdp {

/// A TCP connection with a deadline for every operation. Wire format of the store's protocol:
/// numbers in host byte order, strings as a 64-bit length and the bytes. Errors: StoreError,
/// StoreTimeout.
class StoreConnection {
 public:
  using TimePoint = std::chrono::steady_clock::time_point;

  /// Retries until `deadline`; each attempt looks `host` up again, because its name may not be
  /// registered yet.
  StoreConnection(const std::string& host, int port, TimePoint deadline);
  ~StoreConnection();
  StoreConnection(const StoreConnection&) = delete;
  StoreConnection& operator=(const StoreConnection&) = delete;

  /// Bound of the calls below, and of each string that is put or taken later if that is large.
  void set_deadline(TimePoint deadline) { deadline_ = deadline; }

  // Buffered until flush().
  void put_byte(uint8_t value) { out_.push_back(static_cast<char>(value)); }
  void put_u64(uint64_t value) { put_raw(&value, sizeof(value)); }
  void put_i64(int64_t value) { put_raw(&value, sizeof(value)); }
  void put_u32(uint32_t value) { put_raw(&value, sizeof(value)); }
  void put_string(std::string_view value);
  void flush();

  uint8_t take_byte();
  uint32_t take_u32();
  int64_t take_i64();
  std::string take_string();

  std::string local_address() const;

 private:
  void put_raw(const void* data, size_t bytes);
  void take_raw(void* data, size_t bytes);
  void wait_for(short events, const char* what);

  int fd_ = -1;
  TimePoint deadline_;
  std::string out_;
};

}  // namespace fsdp
