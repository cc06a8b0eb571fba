#pragma once

#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace fsdprun::worker {

/// Threads that do work on inputs; the results are taken in the order in which the inputs came,
/// however many threads there are. Thread: one, beside its own.
template <class In, class Out>
class OrderedWorkers {
 public:
  OrderedWorkers(int threads, std::function<Out(In&)> work) : work_(std::move(work)) {
    for (int i = 0; i < threads; ++i) {
      threads_.emplace_back([this] { Run(); });
    }
  }
  /// Inputs on which no work has begun are dropped.
  ~OrderedWorkers() {
    {
      const std::lock_guard lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) {
      thread.join();
    }
  }
  OrderedWorkers(const OrderedWorkers&) = delete;
  OrderedWorkers& operator=(const OrderedWorkers&) = delete;

  void Submit(In input) {
    auto job = std::make_shared<Job>();
    job->input = std::move(input);
    {
      const std::lock_guard lock(mutex_);
      waiting_.push_back(job);
    }
    submitted_.push_back(std::move(job));
    changed_.notify_all();
  }
  /// Inputs whose results have not been taken.
  size_t pending() const { return submitted_.size(); }
  /// Whether the result of the oldest of them is there; waits for it so long at most.
  /// Precondition: pending() > 0.
  bool Await(std::chrono::milliseconds most) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, most, [&] { return submitted_.front()->IsDone(); });
  }
  /// The result of the oldest of them; waits for it. Throws what its work has thrown. Precondition:
  /// pending() > 0.
  Out Take() {
    const std::shared_ptr<Job> job = std::move(submitted_.front());
    submitted_.pop_front();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job->IsDone(); });
    // Out of the job, which the thread that did it may be the last to hold.
    std::exception_ptr failure = std::move(job->failure);
    if (failure != nullptr) {
      std::rethrow_exception(std::move(failure));
    }
    return std::move(*job->output);
  }

 private:
  struct Job {
    In input;
    std::optional<Out> output;
    std::exception_ptr failure;

    bool IsDone() const { return output.has_value() || failure != nullptr; }
  };

  void Run() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return is_ending_ || !waiting_.empty(); });
        if (is_ending_) {
          return;
        }
        job = std::move(waiting_.front());
        waiting_.pop_front();
      }
      Do(*job);
      changed_.notify_all();
    }
  }

  void Do(Job& job) {
    std::optional<Out> output;
    std::exception_ptr failure;
    try {
      output = work_(job.input);
    } catch (...) {
      failure = std::current_exception();
    }
    const std::lock_guard lock(mutex_);
    job.output = std::move(output);
    job.failure = std::move(failure);
  }

  const std::function<Out(In&)> work_;
  std::deque<std::shared_ptr<Job>> submitted_;  // of the thread that submits

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> waiting_;  // of mutex_, as the jobs' results
  bool is_ending_ = false;                    // of mutex_

  std::vector<std::thread> threads_;
};

}  // namespace fsdprun::worker
