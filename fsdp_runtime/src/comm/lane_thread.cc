#include "fsdp_runtime/src/comm/lane_thread.h"

#include <pthread.h>

#include <utility>

#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/sigpipe_block.h"

namespace fsdp {

void HostWork::wait() {
  std::unique_lock lock(mu_);
  // Bounded, because every operation has a deadline by which it completes its work; a user's hook
  // has none.
  if (!is_done_) {
    const HostWait waiting;
    is_done_changed_.wait(lock, [&] { return is_done_; });
  }
  if (error_ != nullptr) {
    std::rethrow_exception(error_);
  }
}

bool HostWork::is_done() {
  std::lock_guard lock(mu_);
  return is_done_;
}

void HostWork::complete(std::exception_ptr error) {
  std::lock_guard lock(mu_);
  error_ = std::move(error);
  is_done_ = true;
  is_done_changed_.notify_all();
}

LaneThread::LaneThread(std::string name)
    : thread_([this, name = std::move(name)] {
        ::pthread_setname_np(::pthread_self(), name.substr(0, 15).c_str());
        const SigpipeBlock no_sigpipe;
        const UncountedWaits own_waits;
        loop();
      }) {}

LaneThread::~LaneThread() { stop(); }

WorkPtr LaneThread::run(std::function<void()> operation) {
  auto work = std::make_shared<HostWork>();
  {
    std::lock_guard lock(mu_);
    queue_.push_back({std::move(operation), work});
  }
  queue_changed_.notify_one();
  return work;
}

bool LaneThread::is_busy() {
  std::lock_guard lock(mu_);
  return is_running_op_ || !queue_.empty();
}

void LaneThread::stop() {
  {
    std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  queue_changed_.notify_one();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void LaneThread::loop() {
  std::unique_lock lock(mu_);
  while (true) {
    queue_changed_.wait(lock, [&] { return is_stopping_ || !queue_.empty(); });
    if (queue_.empty()) {
      return;
    }
    Entry entry = std::move(queue_.front());
    queue_.pop_front();
    is_running_op_ = true;
    lock.unlock();
    std::exception_ptr error;
    try {
      entry.operation();
    } catch (...) {
      error = std::current_exception();
    }
    // Release the tensors before waking the waiter, which may free the memory they view.
    entry.operation = nullptr;
    lock.lock();
    // Idle before waking the waiter, which may destroy the group at once; that must not count as
    // leaving with work in flight.
    is_running_op_ = false;
    lock.unlock();
    entry.work->complete(std::move(error));
    entry.work.reset();
    lock.lock();
  }
}

}  // namespace fsdp
