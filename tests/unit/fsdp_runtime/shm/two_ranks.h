#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "fsdp_runtime/shm/group.h"
#include "fsdp_runtime/shm/window.h"
#include "fsdp_runtime/shm/window_lane.h"

namespace fsdp::shm::testing {

/// Fills this rank's part with one value.
inline void write_part(Window& window, uint64_t value) {
  auto* words = reinterpret_cast<uint64_t*>(window.own());
  std::fill(words, words + window.bytes() / sizeof(uint64_t), value);
}

/// Whether every word of a rank's part is `value`, as this rank sees it.
inline bool shows(const Window& window, int rank, uint64_t value) {
  const auto* words = reinterpret_cast<const uint64_t*>(window.whole() +
                                                        static_cast<size_t>(rank) * window.bytes());
  return std::all_of(words, words + window.bytes() / sizeof(uint64_t),
                     [value](uint64_t word) { return word == value; });
}

/// Two ranks in the test's own thread, which can be at different points of their program: nothing
/// but the making of a window needs both at once, and that has longer than a test may take.
struct TwoRanks {
  /// `timeout`: of what the lanes wait for.
  explicit TwoRanks(std::chrono::milliseconds timeout = kLong) {
    for (int rank = 0; rank < 2; ++rank) {
      groups[rank] = std::make_unique<Group>(world, rank, kLong);
      lanes[rank] = std::make_unique<WindowLane>(world, Peers(world, rank, timeout, {}));
    }
  }

  using Pair = std::array<std::shared_ptr<Window>, 2>;
  Pair make_window(const std::string& purpose, size_t bytes = 2 * page_bytes()) {
    Pair made;
    std::thread other([&] { made[1] = groups[1]->make_window(0, bytes, purpose); });
    made[0] = groups[0]->make_window(0, bytes, purpose);
    other.join();
    for (int rank = 0; rank < 2; ++rank) {
      lanes[rank]->add(made[rank]);
    }
    return made;
  }
  WindowLane& lane(int rank) { return *lanes[rank]; }

  static constexpr std::chrono::milliseconds kLong = std::chrono::minutes(10);
  std::shared_ptr<World> world = make_thread_world(2);
  std::array<std::unique_ptr<Group>, 2> groups;
  std::array<std::unique_ptr<WindowLane>, 2> lanes;
};

/// What `call` throws; "" if nothing.
template <typename Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

}  // namespace fsdp::shm::testing
