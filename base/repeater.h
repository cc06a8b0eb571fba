#pragma once

#include <functional>
#include <thread>

#include "base/mono_time.h"
#include "base/mutex.h"

namespace fsdprun {

/// Calls a function again and again, on a thread of its own: what must be renewed. The first call
/// comes one interval after the start. The destructor waits for a call that is under way.
class Repeater {
 public:
  Repeater(Duration interval, std::function<void()> call);
  ~Repeater();
  Repeater(const Repeater&) = delete;
  Repeater& operator=(const Repeater&) = delete;

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mu_);

  const Duration interval_;
  const std::function<void()> call_;
  Mutex mu_;
  CondVar changed_;
  bool is_ending_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace fsdprun
