// How DiskOffloadPolicy fails: disks that are full, limited or broken.

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/offload/failing_disk.h"
#include "tests/unit/fsdp_runtime/offload/on_disk.h"

namespace fsdp::testing {
namespace {

class DiskErrorsTest : public OnDiskTest {
 protected:
  FullyShardOptions options_for(const Rank& rank) const {
    return {.mesh = rank.mesh, .offload_policy = DiskOffloadPolicy{folder_}};
  }
};

void expect_parts(const std::string& error, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

struct Huge : torch::nn::Module {
  explicit Huge(int64_t numel) {
    register_parameter("weight", unmaterialized_parameter({numel}, at::kFloat, c10::kCPU));
  }
};

TEST_F(DiskErrorsTest, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
  run_ranks(1, [this](Rank& rank) {
    const std::string error =
        refusal([&] { fully_shard(std::make_shared<Huge>(int64_t{1} << 58), options_for(rank)); });
    expect_parts(error, {"no room for the shard of weight in folder " + folder_,
                         "1152921504606846976 bytes wanted, ", " free (No space left on device)",
                         "make room there"});
  });
}

/// Of the sizes of files, for the process.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const struct rlimit limit { bytes, before_.rlim_max };
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  struct rlimit before_ {};
};

// By default the kernel's signal for that ends the process.
TEST_F(DiskErrorsTest, ALimitOfFileSizesIsAnErrorAndNoSignal) {
  run_ranks(1, [this](Rank& rank) {
    const FileSizeLimit limit(1 << 20);
    const std::string error =
        refusal([&] { fully_shard(std::make_shared<Huge>(int64_t{1} << 20), options_for(rank)); });
    expect_parts(error, {"no room for the shard of weight", "(File too large)", "ulimit -f"});
  });
}

struct HalfFrozen : torch::nn::Module {
  HalfFrozen() {
    register_parameter("frozen", frozen, /*requires_grad=*/false);
    register_parameter("weight", weight);
  }
  at::Tensor frozen = at::arange(6.0);
  at::Tensor weight = at::arange(8.0);
};

// The first group has room: a shard. Of the second, the shard or the gradient has none.
TEST_F(DiskErrorsTest, AUnitOfTwoGroupsStaysWhatItIsIfTheSecondHasNoRoom) {
  run_ranks(1, [this](Rank& rank) {
    const auto module = std::make_shared<HalfFrozen>();
    for (const int before : {1, 2}) {
      const FailingDisk disk({.of_allocation = ENOSPC, .allocations_before = before});
      const std::string error = refusal([&] { fully_shard(module, options_for(rank)); });
      expect_parts(error, {before == 1 ? "no room for the shard of weight"
                                       : "no room for the gradient of weight",
                           "(No space left on device)"});
      const auto params = module->named_parameters();
      EXPECT_TRUE(at::equal(params["frozen"], at::arange(6.0)));
      EXPECT_TRUE(at::equal(params["weight"], at::arange(8.0)));
    }
    const FSDPModule root = fully_shard(module, options_for(rank));
    EXPECT_TRUE(at::equal(root.full_parameter("frozen"), at::arange(6.0)));
    EXPECT_TRUE(at::equal(root.full_parameter("weight"), at::arange(8.0)));
  });
}

// The kernel takes pages for clean that it could not write: given back, they would be lost.
TEST_F(DiskErrorsTest, WhatCouldNotBeWrittenIsKeptAndTold) {
  run_ranks(1, [this](Rank& rank) {
    Sharded setup = make_on_disk(rank, wide_toy());
    const std::vector<LocalShard> shards = setup.root.sharded_parameters();
    const std::vector<std::string> parts = {"writing to a file in folder " + folder_,
                                            "Input/output error", "resume from a checkpoint"};
    const at::Tensor expected = shards[0].local * 3;
    shards[0].local.mul_(3);
    {
      const FailingDisk disk({.of_writing = EIO});
      expect_parts(refusal([&] { loss(setup.model, 0, rank.rank).backward(); }), parts);
    }
    EXPECT_TRUE(at::equal(shards[0].local, expected));
    // The disk says it once, and the values are lost for good.
    expect_parts(refusal([&] { setup.root.full_parameter(shards[0].fqn); }), parts);
  });
}

TEST_F(DiskErrorsTest, AFileSystemThatWritesWhenItLikesIsNoError) {
  run_ranks(1, [this](Rank& rank) {
    const FailingDisk disk({.of_writing = ENOSYS});
    Sharded setup = make_on_disk(rank, wide_toy());
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(setup.root.sharded_gradients()[0].local.isfinite().all().item<bool>());
  });
}

TEST_F(DiskErrorsTest, AFolderThatIsNotThereIsNamed) {
  run_ranks(1, [this](Rank& rank) {
    const std::string missing = folder_ + "/missing";
    const std::string error =
        refusal([&] { make(rank, {}, {.offload_policy = DiskOffloadPolicy{missing}}); });
    expect_parts(error, {"no file can be made in folder " + missing});
  });
}

}  // namespace
}  // namespace fsdp::testing
