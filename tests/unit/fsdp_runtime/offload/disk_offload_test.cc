// What DiskOffloadPolicy leaves on a disk and in memory.

#include <fsdp/clip_grad.h>
#include <fsdp/optim.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/fsdp_runtime/offload/mapped_pages.h"
#include "tests/unit/fsdp_runtime/offload/on_disk.h"

namespace fsdp::testing {
namespace {

/// Of a tensor, those that are wholly in it.
struct WholePages {
  char* begin = nullptr;
  size_t count = 0;
};

WholePages pages_of(const at::Tensor& tensor) {
  const uintptr_t page = page_bytes();
  const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
  const uintptr_t first = (begin + page - 1) / page * page;
  const uintptr_t end = (begin + tensor.nbytes()) / page * page;
  return {reinterpret_cast<char*>(first), first < end ? (end - first) / page : 0};
}

/// Whether a page that is in memory for nobody leaves the kernel's cache when it is told to, and
/// mincore() tells of it: on the usual file systems of disks.
bool cache_can_be_emptied(const std::string& folder) {
  struct statfs disk {};
  TORCH_CHECK(::statfs(folder.c_str(), &disk) == 0, "statfs: ", errno);
  constexpr int64_t kXfs = 0x58465342;
  return disk.f_type == EXT4_SUPER_MAGIC || disk.f_type == kXfs;
}

/// Of the tensor's whole pages, in the kernel's cache or the process's.
int64_t bytes_in_cache(const at::Tensor& tensor) {
  const WholePages pages = pages_of(tensor);
  std::vector<unsigned char> are_in_cache(pages.count);
  TORCH_CHECK(pages.count == 0 ||
                  ::mincore(pages.begin, pages.count * page_bytes(), are_in_cache.data()) == 0,
              "mincore: ", errno);
  return static_cast<int64_t>(page_bytes()) *
         std::count_if(are_in_cache.begin(), are_in_cache.end(),
                       [](unsigned char flags) { return (flags & 1) != 0; });
}

/// Of the tensor's whole pages, those that the process has.
int64_t bytes_mapped(const at::Tensor& tensor) {
  const WholePages pages = pages_of(tensor);
  const auto begin = reinterpret_cast<uintptr_t>(pages.begin);
  return bytes_in_page_table(begin, begin + pages.count * page_bytes());
}

template <class Count>
int64_t sum(const std::vector<LocalShard>& parts, Count count) {
  int64_t bytes = 0;
  for (const LocalShard& part : parts) {
    bytes += part.local.defined() ? static_cast<int64_t>(count(part.local)) : 0;
  }
  return bytes;
}

/// A fault would bring neighbours in that have been given back already.
void read_no_neighbours(const std::vector<LocalShard>& parts) {
  for (const LocalShard& part : parts) {
    const WholePages pages = part.local.defined() ? pages_of(part.local) : WholePages();
    if (pages.count > 0) {
      ::madvise(pages.begin, pages.count * page_bytes(), MADV_RANDOM);
    }
  }
}

class DiskOffloadTest : public OnDiskTest {};

TEST_F(DiskOffloadTest, LeavesNoFileInTheFolder) {
  run_ranks(2, [this](Rank& rank) {
    Sharded setup = make_on_disk(rank);
    const AdamW optimizer(setup.root, {});
    loss(setup.model, 0, rank.rank).backward();
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
  });
}

/// Of this process, in `folder`.
int64_t open_files(const std::string& folder) {
  int64_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code error;  // one is the iterator's own
    const std::string file = std::filesystem::read_symlink(entry.path(), error).string();
    count += file.starts_with(folder + "/fsdp-offload-") ? 1 : 0;
  }
  return count;
}

TEST_F(DiskOffloadTest, HasOneFileHoweverTheFolderIsSpelt) {
  run_ranks(1, [this](Rank& rank) {
    const Sharded one = make_on_disk(rank);
    const Sharded other =
        make(rank, {}, {.offload_policy = DiskOffloadPolicy{folder_ + "/../" + name_ + "//"}});
    EXPECT_EQ(open_files(folder_), 1);
  });
}

// What is not written or read in the meantime. On a file system that keeps pages in its cache, or
// has none beside it, at least the process has given them back, but for the neighbours of others.
TEST_F(DiskOffloadTest, GivesPagesBackBehindEachUse) {
  const bool looks_at_cache = cache_can_be_emptied(folder_);
  run_ranks(1, [&](Rank& rank) {
    Sharded setup = make_on_disk(rank, wide_toy());
    AdamW optimizer(setup.root, {});
    const auto shards = setup.root.sharded_parameters();
    const auto bytes_of = [&](const std::vector<LocalShard>& parts) {
      return sum(parts, [&](const at::Tensor& part) {
        return looks_at_cache ? bytes_in_cache(part) : bytes_mapped(part);
      });
    };
    const int64_t whole = sum(shards, [](const at::Tensor& part) { return part.nbytes(); });
    const int64_t bound = looks_at_cache ? whole / 20 : whole / 2;
    loss(setup.model, 0, rank.rank).backward();
    for (const auto& parts :
         {shards, setup.root.sharded_gradients(), optimizer.exp_avg(), optimizer.exp_avg_sq()}) {
      read_no_neighbours(parts);
    }
    at::NoGradGuard no_grad;
    for (const LocalShard& shard : shards) {
      shard.local.mul_(2);
    }
    ASSERT_GT(bytes_of(shards), whole / 2) << "what has just been written is not seen";
    setup.root.unshard();
    setup.root.reshard();
    for (const FSDPModule& unit : setup.root.units()) {
      unit.unshard();
      unit.reshard();
    }
    EXPECT_LT(bytes_of(shards), bound);
    {
      at::AutoGradMode with_grad(true);
      loss(setup.model, 1, rank.rank).backward();
    }
    EXPECT_LT(bytes_of(shards), bound);
    EXPECT_LT(bytes_of(setup.root.sharded_gradients()), bound);
    clip_grad_norm_(setup.root, 1e-3);
    EXPECT_LT(bytes_of(setup.root.sharded_gradients()), bound);
    optimizer.step();
    // A portion ends in a page that the next one begins with.
    EXPECT_LT(bytes_of(shards) + bytes_of(setup.root.sharded_gradients()) +
                  bytes_of(optimizer.exp_avg()) + bytes_of(optimizer.exp_avg_sq()),
              4 * bound);
    EXPECT_TRUE(shards[2].local.isfinite().all().item<bool>());
  });
}

struct Link : torch::nn::Module {
  Link() { register_module("linear", linear); }
  at::Tensor forward(at::Tensor x) { return linear(x).tanh(); }
  torch::nn::Linear linear{16, 16};
};

struct Links : torch::nn::Module {
  explicit Links(int64_t count) {
    for (int64_t i = 0; i < count; ++i) {
      links.emplace_back(std::make_shared<Link>());
      register_module("link" + std::to_string(i), links.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const Unit<Link>& link : links) {
      x = link(x);
      if (at_backward && link.ptr() == links.front().ptr()) {
        x.register_hook([this](const at::Tensor&) { at_backward(); });
      }
    }
    return x;
  }
  std::vector<Unit<Link>> links;
  std::function<void()> at_backward;  // of the second link's input, when the others have been
};

// Or memory has a second gradient of the whole model when a backward ends.
TEST_F(DiskOffloadTest, AddsGradientsOfADeviceWhileTheBackwardGoesOn) {
  run_ranks(
      2,
      [this](Rank& rank) {
        const FullyShardOptions options{.mesh = rank.mesh,
                                        .offload_policy = DiskOffloadPolicy{folder_}};
        Unit<Links> model(std::make_shared<Links>(8));
        for (const Unit<Link>& link : model->links) {
          fully_shard(link.ptr(), options);
        }
        const FSDPModule root = fully_shard(model.ptr(), options);
        const at::Tensor input = at::ones({2, 16});
        model(input).sum().backward();
        const std::vector<LocalShard> gradients = root.sharded_gradients();
        std::vector<at::Tensor> before;
        for (const LocalShard& gradient : gradients) {
          before.push_back(gradient.local.clone());
        }
        int64_t added = 0;
        model->at_backward = [&] {
          for (size_t i = 0; i < gradients.size(); ++i) {
            added += gradients[i].local.equal(before[i]) ? 0 : 1;
          }
        };
        model(input).sum().backward();
        EXPECT_GE(added, 4) << "of " << gradients.size() << " gradients, two of each unit";
      },
      /*as_on_a_device=*/true);
}

// Its destructors do not free blocks of a file that is the parent's.
TEST_F(DiskOffloadTest, AForkLeavesTheFileToItsParent) {
  run_ranks(1, [this](Rank& rank) {
    std::optional<Sharded> setup = make_on_disk(rank, wide_toy());
    const at::Tensor before = setup->root.sharded_parameters()[0].local.clone();
    const ::pid_t child = ::fork();
    if (child == 0) {
      const std::string error = refusal([&] { AdamW(setup->root, {}); });
      setup.reset();
      const bool is_refused = error.find("is a fork of the one that") != std::string::npos;
      ::_exit(is_refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    EXPECT_TRUE(at::equal(setup->root.sharded_parameters()[0].local, before));
  });
}

}  // namespace
}  // namespace fsdp::testing
