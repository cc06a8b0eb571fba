#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

namespace fsdprun::worker {

/// Makes the values of a sequence ahead of their use, on a thread of its own. Each key leads to a
/// value and to the next key. Memory: `ahead` values, besides the one that is being made.
/// Thread: one takes; `make` runs on the other, one call at a time.
template <class Key, class Value>
class ReadAhead {
 public:
  struct Made {
    Value value;
    Key next;
  };
  using Make = std::function<Made(const Key&)>;

  /// Precondition: ahead >= 1. What `make` refers to outlives this object.
  ReadAhead(size_t ahead, Make make) : ahead_(ahead), make_(std::move(make)) {
    thread_ = std::thread([this] { Run(); });
  }
  /// Waits for the end of a call of `make`.
  ~ReadAhead() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      is_ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  ReadAhead(const ReadAhead&) = delete;
  ReadAhead& operator=(const ReadAhead&) = delete;

  /// The value of `key`, and the key that follows. It is there at once, or soon, if `key` is the
  /// one that followed the last; after a jump the sequence goes on from there. Errors: what `make`
  /// has thrown for this key, and no earlier one; the next call tries anew.
  Made Take(const Key& key) {
    const auto start = std::chrono::steady_clock::now();
    std::unique_lock<std::mutex> lock(mutex_);
    if (!IsComing(key)) {
      ready_.clear();
      wanted_ = key;
      ++jumps_;
      changed_.notify_all();
    }
    changed_.wait(lock, [this] { return !ready_.empty(); });
    Entry entry = std::move(ready_.front());
    ready_.pop_front();
    waited_ += std::chrono::steady_clock::now() - start;
    lock.unlock();
    changed_.notify_all();
    if (entry.error) {
      std::rethrow_exception(entry.error);
    }
    return std::move(*entry.made);
  }

  /// What all calls of Take have taken. Thread: the one that takes.
  std::chrono::steady_clock::duration waited() const { return waited_; }

 private:
  struct Entry {
    Key key;
    std::optional<Made> made;
    std::exception_ptr error;
  };

  bool IsComing(const Key& key) const {
    return ready_.empty() ? wanted_ && *wanted_ == key : ready_.front().key == key;
  }

  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return is_ending_ || (wanted_ && ready_.size() < ahead_); });
      if (is_ending_) {
        return;
      }
      Entry entry{*wanted_, std::nullopt, nullptr};
      const uint64_t jumps = jumps_;
      lock.unlock();
      try {
        entry.made.emplace(make_(entry.key));
      } catch (...) {
        entry.error = std::current_exception();
      }
      lock.lock();
      if (jumps != jumps_) {
        continue;  // somebody wants something else
      }
      wanted_ = entry.error ? std::nullopt : std::optional<Key>(entry.made->next);
      ready_.push_back(std::move(entry));
      changed_.notify_all();
    }
  }

  const size_t ahead_;
  const Make make_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Entry> ready_;
  /// What is made now or next; none after an error.
  std::optional<Key> wanted_;
  uint64_t jumps_ = 0;
  bool is_ending_ = false;
  std::chrono::steady_clock::duration waited_{};
  std::thread thread_;
};

}  // namespace fsdprun::worker
