#pragma once

#include <fsdp/collectives.h>

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace fsdp {

/// A collective that runs on a host thread. wait() blocks and rethrows its exception.
class HostWork : public Work {
 public:
  void wait() override;
  bool is_done() override;
  /// Called once by the thread that ran it.
  void complete(std::exception_ptr error);

 private:
  std::mutex mu_;
  std::condition_variable is_done_changed_;
  bool is_done_ = false;      // guarded by mu_
  std::exception_ptr error_;  // guarded by mu_
};

/// Runs operations one after another in the order of run(), on its own thread.
class LaneThread {
 public:
  /// `name`: at most 15 characters, shown by top and gdb.
  explicit LaneThread(std::string name);
  ~LaneThread();

  WorkPtr run(std::function<void()> operation);
  /// True while an operation runs or waits.
  bool is_busy();
  /// Runs what has been queued, then ends the thread. Idempotent.
  void stop();

 private:
  struct Entry {
    std::function<void()> operation;
    std::shared_ptr<HostWork> work;
  };
  void loop();

  std::mutex mu_;
  std::condition_variable queue_changed_;
  std::deque<Entry> queue_;     // guarded by mu_
  bool is_running_op_ = false;  // guarded by mu_
  bool is_stopping_ = false;    // guarded by mu_
  std::thread thread_;
};

}  // namespace fsdp
