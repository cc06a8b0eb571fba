#pragma once

#include <string>
#include <vector>

namespace fsdprun::checkpoint {

/// Of an error: the way to the other ranks is lost. Nothing need be wrong with the disk.
constexpr int kChannelLost = -2;

/// How ranks exchange small texts. Every rank makes the same calls in the same order. Thread: one
/// at a time.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Before a series of exchanges, when no rank is in one: whatever has failed in the series before
  /// is left behind.
  virtual void Restart() {}
  /// Every rank's text on every rank, by rank.
  virtual std::vector<std::string> Gather(const std::string& mine) = 0;
  /// Rank 0's text on every rank.
  virtual std::string Broadcast(const std::string& mine) = 0;
  /// From any thread: what waits, and whatever comes later, fails soon, with ECANCELED.
  virtual void Cancel() = 0;
};

/// Of a world of one.
class LoneChannel : public Channel {
 public:
  std::vector<std::string> Gather(const std::string& mine) override { return {mine}; }
  std::string Broadcast(const std::string& mine) override { return mine; }
  void Cancel() override {}
};

}  // namespace fsdprun::checkpoint
