// The memory of deferred initialization. Each case has a process of its own.

#include <fsdp/device_mesh.h>
#include <fsdp/fully_shard.h>
#include <fsdp/initialize.h>
#include <gtest/gtest.h>
#include <torch/nn/init.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/types.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/base/address_sanitizer.h"
#include "tests/unit/fsdp_runtime/engine/hybrid_model.h"
#include "tests/unit/fsdp_runtime/offload/mapped_pages.h"

namespace fsdp::testing {
namespace {

/// Of this process, resident.
int64_t resident_bytes() {
  std::ifstream statm("/proc/self/statm");
  int64_t pages = 0;
  statm >> pages >> pages;
  return pages * static_cast<int64_t>(page_bytes());
}

TEST(DeferredMemoryTest, AModelThatIsLargerThanTheMemoryTakesNone) {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const int64_t before = resident_bytes();
  const auto model = deferred_init([] {
    torch::nn::Sequential layers;
    for (int i = 0; i < 64; ++i) {
      layers->push_back(torch::nn::Linear(1 << 16, 1 << 14));
    }
    return layers;
  });
  EXPECT_EQ(model->parameters()[0].nbytes(), static_cast<size_t>(4 * kGiB));
  EXPECT_LT(resident_bytes() - before, kGiB / 4);
}

/// The most that was resident since reset_peak().
int64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    if (int64_t kilobytes = 0; word == "VmHWM:" && status >> kilobytes) {
      return kilobytes * 1024;
    }
  }
  return -1;
}

bool reset_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

// What a rank of eight has is an eighth; the others need not be there for that.
TEST(DeferredMemoryTest, OneTensorAtATimeIsWhole) {
  struct Wide : torch::nn::Module {
    Wide() {
      for (int i = 0; i < 8; ++i) {
        const std::string name = std::to_string(i);
        layers.push_back(register_module(name, torch::nn::Linear(2048, 2048)));
        register_parameter("scaled" + name, torch::randn({2048, 2048}) * 0.02);
      }
      for (torch::nn::Linear& layer : layers) {
        torch::nn::init::normal_(layer->weight);
      }
    }
    std::vector<torch::nn::Linear> layers;
  };
  constexpr int64_t kTensor = int64_t{2048} * 2048 * 4;
  const auto world = make_local_world(8, std::chrono::seconds(20));
  const auto group = std::make_shared<GroupWithoutWindows>(world[0]);
  const auto mesh = init_device_mesh(c10::kCPU, {8}, {"dp_shard"}, group);
  const auto model = deferred_init([] { return std::make_shared<Wide>(); });
  ASSERT_TRUE(reset_peak()) << "the peak would be one from before";
  const int64_t before = resident_bytes();
  const FSDPModule root = fully_shard(model, {.mesh = mesh});
  materialize_module(model);
  const int64_t added = peak_bytes() - before;
  // The shards are two, what a tensor is made of and itself two or three, of 16. AddressSanitizer
  // keeps what has been freed.
  EXPECT_TRUE(added < 8 * kTensor || fsdprun::kHasAddressSanitizer) << added << " bytes";
  for (const LocalShard& shard : root.sharded_parameters()) {
    EXPECT_TRUE(shard.local.numel() == 0 || shard.local.std().item<double>() > 0) << shard.fqn;
  }
}

}  // namespace
}  // namespace fsdp::testing
