#pragma once

// torch 2.11's TCPStore protocol (torch/csrc/distributed/c10d/TCPStoreBackend.hpp), server side:
// bytes to requests. Request = u8 operation, then arguments; key and value = u64 length + bytes;
// host byte order.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun {

enum class StoreOp : uint8_t {
  kValidate = 0,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kKeyCount,
  kDelete,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLength,
  kListKeys,
};

inline constexpr uint32_t kStoreValidationWord = 0x3C85F7CE;

struct StoreRequestLimits {
  size_t max_key_bytes = 64u << 10;
  size_t max_value_bytes = 256u << 20;
  /// Keys in one multi-key request.
  size_t max_keys = 1u << 17;
  /// One whole request.
  size_t max_request_bytes = 512u << 20;
};

/// One decoded request; which fields are set depends on `op`.
struct StoreRequest {
  StoreOp op = StoreOp::kValidate;
  /// One key, or those of a multi-key request.
  std::vector<std::string> keys;
  /// One value; for kCompareSet expected and desired; for kMultiSet one per key.
  std::vector<std::string> values;
  /// kAdd: the amount; kValidate, kPing: the word.
  int64_t number = 0;
};

enum class StoreParse { kComplete, kIncomplete, kInvalid };

/// Decodes the request at the front of `bytes`. kComplete: `consumed` bytes belong to it.
/// kIncomplete: valid so far; it needs at least `needed` bytes. kInvalid: unknown operation or a
/// limit exceeded; detected as soon as the offending length has arrived, before its bytes have.
StoreParse ParseStoreRequest(std::string_view bytes, const StoreRequestLimits& limits,
                             StoreRequest& request, size_t& consumed, size_t& needed);

}  // namespace fsdprun
