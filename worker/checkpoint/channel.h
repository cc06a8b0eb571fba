#pragma once

#include <string>
#include <vector>

namespace fsdprun::checkpoint {

/// How ranks exchange small texts. Every rank makes the same calls in the same order. Thread: one
/// at a time.
class Channel {
 public:
  virtual ~Channel() = default;
  /// Every rank's text on every rank, by rank.
  virtual std::vector<std::string> Gather(const std::string& mine) = 0;
  /// Rank 0's text on every rank.
  virtual std::string Broadcast(const std::string& mine) = 0;
  /// From any thread: what waits, and whatever comes later, fails soon, with ECANCELED.
  virtual void Cancel() = 0;
};

}  // namespace fsdprun::checkpoint
