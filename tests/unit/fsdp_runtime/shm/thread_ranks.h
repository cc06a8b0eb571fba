#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/shm/group.h"

namespace fsdp::shm::testing {

/// Runs `body(group)` on `size` threads, each a rank of one fresh world; returns each rank's
/// error text ("" if none).
inline std::vector<std::string> run_ranks(
    int size, const std::function<void(Group&)>& body,
    std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  std::shared_ptr<World> world = make_thread_world(size);
  std::vector<std::string> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Group group(world, rank, timeout);
      try {
        body(group);
      } catch (const std::exception& error) {
        errors[static_cast<size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return errors;
}

}  // namespace fsdp::shm::testing
