#pragma once

#include <gmock/gmock.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/comm/device_watch.h"

namespace fsdp::testing {

using std::chrono::milliseconds;

/// What has been done to the communicators of a test, in order.
class Journal {
 public:
  void write(const std::string& what) {
    std::lock_guard lock(mu_);
    entries_.push_back(what);
    changed_.notify_all();
  }
  std::vector<std::string> entries() {
    std::lock_guard lock(mu_);
    return entries_;
  }
  void wait_for(const std::string& what, milliseconds limit = std::chrono::minutes(10)) {
    std::unique_lock lock(mu_);
    changed_.wait_for(lock, limit,
                      [&] { return ::testing::Value(entries_, ::testing::Contains(what)); });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::vector<std::string> entries_;
};

class FakeCommunicators : public Communicators {
 public:
  FakeCommunicators(std::string name, Journal& journal)
      : name_(std::move(name)), journal_(journal) {}
  std::string asynchronous_error() override { return has_error ? "the network is down" : ""; }
  void revoke() override {
    if (on_revoke) {
      on_revoke();
    }
    journal_.write(name_ + " revoked");
    is_running = false;  // what is in flight ends
  }
  void abort() override {
    if (hangs.valid()) {
      hangs.wait();
    }
    if (on_end) {
      on_end();
    }
    journal_.write(name_ + " aborted");
  }
  void warn(const std::string& what) override { journal_.write(name_ + " warns: " + what); }
  void shutdown() override {
    if (waits_for_peers.valid()) {
      journal_.write(name_ + " shutting down");
      waits_for_peers.wait();
    }
    if (on_end) {
      on_end();
    }
    journal_.write(name_ + " shut down");
  }

  std::atomic<bool> is_running{true};
  std::atomic<bool> has_error{false};
  std::function<void()> on_revoke, on_end;
  std::shared_future<void> hangs;            // abort()
  std::shared_future<void> waits_for_peers;  // shutdown()

 private:
  const std::string name_;
  Journal& journal_;
};

struct Device {
  explicit Device(Journal& journal, const std::string& name = "a")
      : communicators(std::make_shared<FakeCommunicators>(name, journal)) {}
  GroupPlace place(milliseconds timeout = std::chrono::minutes(10)) const {
    return {.rank = 1,
            .size = 2,
            .timeout = timeout,
            .name = "world",
            .world_ranks = {},
            .membership = membership};
  }
  void launch(DeviceWatch& watch, const std::string& operation) const {
    watch.add(operation, [group = communicators] { return !group->is_running; });
  }

  std::shared_ptr<Membership> membership = std::make_shared<Membership>(1);
  std::shared_ptr<FakeCommunicators> communicators;
};

inline constexpr DeviceWatch::Pace kQuick{milliseconds(1), std::chrono::minutes(10)};

}  // namespace fsdp::testing
