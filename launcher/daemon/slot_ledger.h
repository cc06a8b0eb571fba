#pragma once

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fsdprun {

/// Which session has how many of a node's slots, and which of its devices. With devices there are
/// as many slots, and each slot comes with one. Pure.
class SlotLedger {
 public:
  SlotLedger(std::string node, int slots, std::vector<std::string> devices);

  /// Gives `session` that many slots, and the first devices that are free. `title` is what others
  /// are told of it. Errors: RESOURCE_EXHAUSTED, with who has what; OUT_OF_RANGE if there are not
  /// so many at all.
  absl::StatusOr<std::vector<std::string>> Take(const std::string& session,
                                                const std::string& title, int slots);
  /// Of a session that an earlier daemon has given them to. What is not there any more is not kept.
  void Restore(const std::string& session, const std::string& title, int slots,
               const std::vector<std::string>& devices);
  /// Idempotent.
  void Free(const std::string& session);

  int free_slots() const;
  /// What a session can have at most: each slot comes with one.
  int most_devices() const { return std::min(slots_, static_cast<int>(devices_.size())); }

 private:
  struct Holding {
    std::string title;
    int slots = 0;
    std::vector<std::string> devices;
  };

  std::string Users() const;
  bool IsFree(const std::string& device) const;

  const std::string node_;
  const int slots_;
  const std::vector<std::string> devices_;
  std::map<std::string, Holding> holdings_;
};

}  // namespace fsdprun
