#pragma once

#include <chrono>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/world.h"
#include "fsdp_runtime/src/comm/peer_links.h"

namespace fsdp::testing {

/// Between threads.
class MemoryExchange : public shm::Exchange {
 public:
  void put(const std::string& key, const std::string& value) override {
    std::lock_guard lock(mu_);
    values_[key] = value;
    changed_.notify_all();
  }
  std::string get(const std::string& key, std::chrono::steady_clock::time_point deadline) override {
    std::unique_lock lock(mu_);
    if (!changed_.wait_until(lock, deadline, [&] { return values_.contains(key); })) {
      throw std::runtime_error(key + " is not there");
    }
    return values_.at(key);
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

/// The links of the ranks of a world.
inline std::vector<std::unique_ptr<PeerLinks>> linked(int64_t size) {
  MemoryExchange exchange;
  std::vector<std::unique_ptr<PeerLinks>> links(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      links[static_cast<size_t>(rank)] =
          std::make_unique<PeerLinks>(exchange, rank, size, "127.0.0.1",
                                      std::chrono::steady_clock::now() + std::chrono::seconds(60));
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return links;
}

}  // namespace fsdp::testing
