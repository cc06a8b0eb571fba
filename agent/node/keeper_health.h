#pragma once

#include <optional>

#include "base/mono_time.h"

namespace fsdprun {

/// Whether a node has a keeper, and whether another is worth a try.
class KeeperHealth {
 public:
  void Ready(MonoTime now);
  /// The keeper died or could not be started: after which delay to start another; empty if too many
  /// have failed in a row.
  std::optional<Duration> Lost(MonoTime now);
  /// It has started workers.
  void HasProvenItself() { failures_ = 0; }
  bool is_ready() const { return is_ready_; }
  /// In a row.
  int failures() const { return failures_; }

 private:
  bool is_ready_ = false;
  int failures_ = 0;
  MonoTime ready_at_{};
};

}  // namespace fsdprun
