#pragma once

#include <c10/util/Exception.h>
#include <fsdp/device_mesh.h>
#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/src/comm/local_world.h"

namespace fsdp::testing {

/// One rank of a world of threads: what its thread works with.
struct Rank {
  int64_t rank = 0;
  int64_t size = 1;
  std::shared_ptr<RecordingCollectives> comm;
  std::shared_ptr<DeviceMesh> mesh;
};

/// Says that streams order its operations, as a device's do, so that the engine moves gradients in
/// batches. That wait() blocks the host all the same is more than it promises.
class AsOnADevice : public RecordingCollectives {
 public:
  using RecordingCollectives::RecordingCollectives;
  bool is_stream_ordered() const override { return true; }
};

/// Runs `body` once per rank, each on its own thread, and rethrows the first exception.
inline void run_ranks(int64_t size, const std::function<void(Rank&)>& body,
                      bool as_on_a_device = false) {
  const auto world = make_local_world(size, std::chrono::seconds(20));
  std::vector<std::exception_ptr> errors(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        Rank rank;
        rank.rank = r;
        rank.size = size;
        const std::shared_ptr<Collectives>& inner = world[static_cast<size_t>(r)];
        rank.comm = as_on_a_device ? std::make_shared<AsOnADevice>(inner)
                                   : std::make_shared<RecordingCollectives>(inner);
        rank.mesh = init_device_mesh(c10::kCPU, {size}, {"dp_shard"}, rank.comm);
        body(rank);
      } catch (...) {
        errors[static_cast<size_t>(r)] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& error : errors) {
    if (error) {
      std::rethrow_exception(error);
    }
  }
}

/// What `run` is refused with.
inline std::string refusal(const std::function<void()>& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  ADD_FAILURE() << "accepted";
  return "";
}

}  // namespace fsdp::testing
