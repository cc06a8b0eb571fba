#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace fsdprun::keeper {

enum class LogOp : uint32_t { kOpen = 0, kWrite = 1, kClose = 2 };

/// Begins a request to the log writer; the path or the bytes follow in the same packet.
struct LogRequest {
  uint64_t file = 0;
  LogOp op = LogOp::kOpen;
  uint32_t size = 0;
};
/// The log writer's answer to the oldest request that it has not answered.
struct LogAnswer {
  uint64_t file = 0;
  uint32_t written = 0;
  int32_t error = 0;
};

/// What the log writer has been asked to do and has not answered. Bytes are kept until they are
/// known to be in the file, so that none is lost with a writer. Decides when a writer hangs. Pure:
/// time comes in as nanoseconds of a monotonic clock.
class LogQueue {
 public:
  static constexpr size_t kMaxBytes = 1u << 20;
  /// No answer for this long, while somebody waits for one, means that the file system hangs.
  static constexpr int64_t kAnswerLimitNs = 1'000'000'000;
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  struct Entry {
    LogRequest request;
    std::string_view payload;
  };

  LogQueue();

  /// Output may only be added while there is room; opening and closing files always may.
  bool HasRoom(size_t payload_bytes) const;
  bool is_empty() const { return front_ == bytes_.size(); }

  void Add(const LogRequest& request, std::string_view payload);
  /// The oldest request that has not been sent, as a packet; empty if there is none.
  std::string_view NextUnsent() const;
  void MarkSent();
  /// The oldest request; it must exist. Valid until the next change.
  Entry Front() const;
  /// The oldest request has been answered.
  void Pop();

  /// To be told at every turn of the loop. `is_awaited`: somebody waits for an answer; a full queue
  /// makes the workers wait.
  void Observe(bool is_awaited, int64_t now_ns);
  /// When the writer counts as hung, or kNever.
  int64_t DeadlineNs() const;
  /// The deadline passed for another reason than a hang: it starts anew.
  void Extend(int64_t now_ns);

 private:
  Entry At(size_t offset) const;

  std::string bytes_;
  size_t front_ = 0;
  size_t unsent_ = 0;
  std::optional<int64_t> awaited_since_ns_;
};

}  // namespace fsdprun::keeper
