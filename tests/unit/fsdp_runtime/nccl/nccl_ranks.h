#pragma once

// Ranks of a group of NCCL on the doubles: threads, of which each has a device.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fsdp/process_group.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/nccl/fake_cuda.h"
#include "tests/unit/fsdp_runtime/nccl/fake_nccl.h"

namespace fsdp::testing {

inline ProcessGroupOptions nccl_options(int64_t rank, int64_t size) {
  ProcessGroupOptions options;
  options.backend = "nccl";
  options.device_type = c10::kCUDA;
  options.rank = options.local_rank = rank;
  options.world_size = size;
  options.timeout = std::chrono::seconds(60);
  return options;
}

/// Runs `body` on two ranks. Returns the error of each, "" if there is none.
inline std::vector<std::string> run_nccl(
    const Body& body, std::chrono::milliseconds timeout = std::chrono::seconds(60),
    bool communicates_alone = false) {
  const auto store = serve_store();
  const std::string prefix = prefix_of_new_store();
  return run_threads(
      2,
      [&](int64_t rank) {
        ProcessGroupOptions options = nccl_options(rank, 2);
        options.store_prefix = prefix;
        options.master_port = store->getPort();
        options.timeout = timeout;
        options.communicates_alone = communicates_alone;
        return init_process_group(options);
      },
      body);
}

inline at::Tensor on_device(const Collectives& group, int64_t numel,
                            at::ScalarType dtype = at::kFloat) {
  return at::empty({numel}, at::TensorOptions().dtype(dtype).device(group.device()));
}

/// Of the group's rank, since it is in `begin`: see FakeCuda::calls().
inline std::vector<std::string> calls_of(const Collectives& group, size_t begin = 0) {
  const std::vector<std::string> all =
      FakeCuda::get().calls(static_cast<int>(group.device().index()));
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.end()};
}

inline c10::Stream new_stream_of(const Collectives& group) {
  return c10::impl::VirtualGuardImpl(c10::kCUDA).getStreamFromGlobalPool(group.device());
}

class NcclTest : public ::testing::Test {
 protected:
  NcclTest() {
    cuda_.reset();
    nccl_.reset();
  }
  ~NcclTest() override { nccl_.reset(); }
  FakeCuda& cuda_ = FakeCuda::get();
  FakeNccl& nccl_ = FakeNccl::get();
};

}  // namespace fsdp::testing
