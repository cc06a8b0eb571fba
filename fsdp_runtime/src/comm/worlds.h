#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// Which groups of this process are whole worlds, to find the one that is meant where none is
/// named. Keeps none alive. Of the process, because nobody has another place for it; guarded by a
/// mutex, because ranks may be threads.
class FSDP_API Worlds {
 public:
  static Worlds& get();

  /// `world` has been formed, and knows its ranks by `membership`.
  void add(const std::shared_ptr<Collectives>& world,
           const std::shared_ptr<Membership>& membership);
  /// `world` has been formed of the ranks that are left of the one of `before`, which failed: it is
  /// no longer one that could be meant, though somebody may still have it. No-op for `world` if
  /// that one is not known here.
  void replace(const std::shared_ptr<Membership>& before, const std::shared_ptr<Collectives>& world,
               const std::shared_ptr<Membership>& membership);
  /// The only one that is alive. Errors: TORCH_CHECK, with `caller` and what to do, if there is
  /// none, or more than one.
  std::shared_ptr<Collectives> only(const std::string& caller) const;

 private:
  struct World {
    std::weak_ptr<Collectives> group;
    std::weak_ptr<Membership> membership;  // parts of the world have it, too, and may be left alone
    bool is_replaced = false;
  };
  void add_locked(const std::shared_ptr<Collectives>& world,
                  const std::shared_ptr<Membership>& membership);

  mutable std::mutex mutex_;
  std::vector<World> worlds_;  // in the order in which they were formed
  bool was_one_formed_ = false;
};

}  // namespace fsdp
