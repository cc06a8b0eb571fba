// What DiskOffloadPolicy leaves on a disk and in memory, and how it fails.

#include <fsdp/clip_grad.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// A folder for this test alone.
class DiskOffloadTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "offload-XXXXXX";
    ASSERT_NE(::mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  Sharded make_on_disk(const Rank& rank, const ToyConfig& config = {}) const {
    return make(rank, config, {.offload_policy = DiskOffloadPolicy{folder_}});
  }
  std::string folder_;
};

/// Of the whole pages that the tensor has.
int64_t bytes_in_memory(const at::Tensor& tensor) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t end = (begin + tensor.nbytes()) / page * page;
  if (first >= end) {
    return 0;
  }
  std::vector<unsigned char> are_in_memory((end - first) / page);
  TORCH_CHECK(::mincore(reinterpret_cast<void*>(first), end - first, are_in_memory.data()) == 0,
              "mincore: ", errno);
  return static_cast<int64_t>(page) *
         std::count_if(are_in_memory.begin(), are_in_memory.end(),
                       [](unsigned char flags) { return (flags & 1) != 0; });
}

int64_t bytes_in_memory(const std::vector<LocalShard>& parts) {
  int64_t bytes = 0;
  for (const LocalShard& part : parts) {
    bytes += part.local.defined() ? bytes_in_memory(part.local) : 0;
  }
  return bytes;
}

int64_t bytes_of_all(const FSDPModule& root) {
  int64_t bytes = 0;
  for (const LocalShard& shard : root.sharded_parameters()) {
    bytes += static_cast<int64_t>(shard.local.nbytes());
  }
  return bytes;
}

TEST_F(DiskOffloadTest, LeavesNoFileInTheFolder) {
  run_ranks(2, [this](Rank& rank) {
    Sharded setup = make_on_disk(rank);
    const AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  });
}

// mincore() tells of the page cache, which the pages leave as well.
TEST_F(DiskOffloadTest, GivesPagesBackBehindEachUse) {
  run_ranks(1, [this](Rank& rank) {
    Sharded setup = make_on_disk(rank, wide_toy());
    const std::vector<LocalShard> shards = setup.root.sharded_parameters();
    shards[2].local.mul_(2);
    if (bytes_in_memory(shards[2].local) == 0) {
      GTEST_FAIL() << "mincore sees no page that has just been written";
    }
    setup.root.unshard();
    setup.root.units()[1].unshard();
    setup.root.units()[1].reshard();
    AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_EQ(bytes_in_memory(setup.root.sharded_parameters()), 0);
    EXPECT_EQ(bytes_in_memory(setup.root.sharded_gradients()), 0);
    clip_grad_norm_(setup.root, 1e-3);
    EXPECT_EQ(bytes_in_memory(setup.root.sharded_gradients()), 0);
    optimizer.step();
    // A portion ends in a page that the next one begins with.
    const int64_t whole = 4 * bytes_of_all(setup.root);
    const int64_t left = bytes_in_memory(setup.root.sharded_parameters()) +
                         bytes_in_memory(setup.root.sharded_gradients()) +
                         bytes_in_memory(optimizer.exp_avg()) +
                         bytes_in_memory(optimizer.exp_avg_sq());
    EXPECT_LT(left, whole / 20) << "of " << whole;
    EXPECT_TRUE(setup.root.sharded_parameters()[2].local.isfinite().all().item<bool>());
  });
}

TEST_F(DiskOffloadTest, AFullDiskIsAnErrorBeforeAnythingIsWritten) {
  run_ranks(1, [this](Rank& rank) {
    struct Huge : torch::nn::Module {
      at::Tensor weight = register_parameter(
          "weight", unmaterialized_parameter({int64_t{1} << 42}, at::kFloat, c10::kCPU));
    };
    const std::string error = refusal([&] {
      fully_shard(std::make_shared<Huge>(),
                  {.mesh = rank.mesh, .offload_policy = DiskOffloadPolicy{folder_}});
    });
    for (const std::string& part :
         {std::string("no room for the shard of weight in folder ") + folder_,
          std::string("17592186044416 bytes wanted, "), std::string(" free (")}) {
      EXPECT_NE(error.find(part), std::string::npos) << error;
    }
  });
}

TEST_F(DiskOffloadTest, AFolderThatIsNotThereIsNamed) {
  run_ranks(1, [this](Rank& rank) {
    const std::string missing = folder_ + "/missing";
    const std::string error =
        refusal([&] { make(rank, {}, {.offload_policy = DiskOffloadPolicy{missing}}); });
    EXPECT_NE(error.find("no file can be made in folder " + missing), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace fsdp::testing
