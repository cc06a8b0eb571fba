#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "base/mono_time.h"
#include "base/mutex.h"
#include "launcher/directory/claim.h"

namespace fsdprun {

/// Renews a claim again and again, on a thread of its own. The destructor waits for a renewal that
/// is under way.
class Renewal {
 public:
  /// Several of them fit into a lease.
  static constexpr Duration kInterval = std::chrono::seconds(4);
  static_assert(2 * kInterval <= kSilenceOfRefused);

  explicit Renewal(std::function<void()> renew);
  ~Renewal();
  Renewal(const Renewal&) = delete;
  Renewal& operator=(const Renewal&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const std::function<void()> renew_;
  Mutex mu_;
  CondVar changed_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace fsdprun
