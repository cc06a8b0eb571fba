#pragma once

#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"

namespace fsdprun::checkpoint {

/// Of an error: the way to the other ranks is lost. Nothing need be wrong with the disk.
constexpr int kChannelLost = -2;

/// How ranks exchange texts. Every rank makes the same calls in the same order. Thread: one at a
/// time.
class Channel {
 public:
  /// Every rank's text, by rank; throws nothing.
  using Answer = std::function<std::string(const std::vector<std::string>&)>;

  virtual ~Channel() = default;
  /// Before a series of exchanges, when no rank is in one: whatever has failed in the series before
  /// is left behind.
  virtual void Restart() {}
  /// What rank 0 answers to all ranks' texts, on every rank; the texts come to rank 0 alone.
  virtual std::string Ask(const std::string& mine, const Answer& answer) = 0;
  /// Rank 0's text on every rank.
  virtual std::string Broadcast(const std::string& mine) = 0;
  /// From any thread: what waits, and whatever would wait later, fails soon, as `why` says. Only
  /// the first counts.
  virtual void Cancel(const CheckpointError& why) = 0;
  /// From any thread: whether this rank has lost the way to the others, which may still wait for
  /// it. For good.
  virtual bool IsLost() const { return false; }
};

/// Of a world of one.
class LoneChannel : public Channel {
 public:
  std::string Ask(const std::string& mine, const Answer& answer) override {
    ThrowIfCancelled();
    return answer({mine});
  }
  std::string Broadcast(const std::string& mine) override {
    ThrowIfCancelled();
    return mine;
  }
  void Cancel(const CheckpointError& why) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = cancelled_.value_or(why);
  }

 private:
  void ThrowIfCancelled() {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cancelled_) {
      throw CheckpointError(*cancelled_);
    }
  }

  std::mutex mutex_;
  std::optional<CheckpointError> cancelled_;  // guarded by mutex_
};

}  // namespace fsdprun::checkpoint
