// A model that is larger than the memory that a rank may use: made without memory, trained with
// AdamW and saved. What "the model" is: parameters, gradients and AdamW's state, 16 bytes for each
// parameter in float32. Measured is the proportional set size (PSS), in which memory that ranks
// share counts once, in equal parts, but for the files of libraries: the most of it at any time
// beyond what a rank has that has trained one of the blocks alone.

#include <fsdp/clip_grad.h>
#include <fsdp/device_mesh.h>
#include <fsdp/initialize.h>
#include <fsdp/optim.h>
#include <fsdp/process_group.h>
#include <fsdp/state_dict.h>
#include <fsdp/unit.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <malloc.h>
#include <sys/vfs.h>
#include <torch/nn/modules/linear.h>
#include <torch/utils.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <ostream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/rank_processes.h"
#include "tests/unit/fsdp_runtime/offload/mapped_pages.h"

namespace fsdp::testing {
namespace {

constexpr int64_t kRanks = 4;
constexpr int64_t kWidth = 512;
constexpr int64_t kBlocks = 40;
constexpr int64_t kModelBytes = 16 * kBlocks * (kWidth * kWidth + kWidth);

/// Bytes.
struct Pss {
  int64_t of_nothing = 0;  // anonymous
  int64_t of_offload = 0;  // files of that; not those of libraries, which other processes map
  int64_t of_shared_memory = 0;
  int64_t all() const { return of_nothing + of_offload + of_shared_memory; }
};

/// Where files are shared memory.
bool is_in_memory(const std::string& folder) {
  struct statfs system = {};
  TORCH_CHECK(::statfs(folder.c_str(), &system) == 0, "no file system of ", folder);
  return system.f_type == TMPFS_MAGIC;
}

/// Of offload's files, which nobody else maps; none if they are counted as shared memory.
int64_t bytes_of_offload() {
  static const bool is_counted = is_in_memory(::testing::TempDir());
  if (is_counted) {
    return 0;
  }
  std::ifstream maps("/proc/self/maps");
  std::string line;
  int64_t bytes = 0;
  while (std::getline(maps, line)) {  // "7f10000-7f20000 rw-s ... /folder/fsdp-offload-..."
    if (line.find("/fsdp-offload-") != std::string::npos) {
      size_t length = 0;
      const uintptr_t begin = std::stoull(line, &length, 16);
      bytes += bytes_in_page_table(begin, std::stoull(line.substr(length + 1), nullptr, 16));
    }
  }
  return bytes;
}

Pss pss_now() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  std::string line;
  Pss pss{.of_offload = bytes_of_offload()};
  while (std::getline(rollup, line)) {
    std::istringstream words(line);
    std::string name;
    int64_t kilobytes = 0;
    if (words >> name >> kilobytes) {
      const int64_t bytes = kilobytes * 1024;
      (name == "Pss_Anon:"    ? pss.of_nothing
       : name == "Pss_Shmem:" ? pss.of_shared_memory
                              : kilobytes) = bytes;
    }
  }
  TORCH_CHECK(pss.of_nothing > 0, "no Pss_Anon in /proc/self/smaps_rollup");
  return pss;
}

/// The most that this process has had. What is between two looks it can miss, so a test must not
/// need it to see something.
class PeakPss {
 public:
  PeakPss()
      : watcher_([this] {
          while (!has_ended_) {
            look();
            std::this_thread::sleep_for(std::chrono::milliseconds(10));
          }
        }) {}
  ~PeakPss() { end(); }
  PeakPss(const PeakPss&) = delete;
  PeakPss& operator=(const PeakPss&) = delete;

  void look() {
    const Pss now = pss_now();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (now.all() > most_.all()) {
      most_ = now;
    }
  }
  Pss end() {
    has_ended_ = true;
    if (watcher_.joinable()) {
      watcher_.join();
    }
    return most_;
  }

 private:
  std::mutex mutex_;
  Pss most_;  // guarded by mutex_
  std::atomic<bool> has_ended_{false};
  std::thread watcher_;
};

struct Block : torch::nn::Module {
  explicit Block(int64_t width) : linear(width, width) { register_module("linear", linear); }
  at::Tensor forward(at::Tensor x) {
    if (at_forward) {
      at_forward();
    }
    return x + linear(x).tanh();
  }
  torch::nn::Linear linear;
  std::function<void()> at_forward;
};

struct Chain : torch::nn::Module {
  Chain(int64_t length, int64_t width) {
    for (int64_t i = 0; i < length; ++i) {
      blocks.emplace_back(std::make_shared<Block>(width));
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const Unit<Block>& block : blocks) {
      x = block(x);
    }
    return x;
  }
  std::vector<Unit<Block>> blocks;
};

struct Course {
  friend void PrintTo(const Course& course, std::ostream* out) { *out << course.name; }

  std::string name;
  std::string backend;
  bool is_on_disk = false;
  double most = 0;  // of the model's bytes, on each rank
};

/// Two steps, and what rank 0 writes to `folder`, a unit at a time.
void train_and_save(int64_t length, int64_t width, const FullyShardOptions& options,
                    const std::string& folder, const std::function<void()>& look) {
  torch::manual_seed(3);
  auto model = deferred_init([&] { return Unit<Chain>(std::make_shared<Chain>(length, width)); });
  std::vector<FSDPModule> units;
  for (Unit<Block>& block : model->blocks) {
    units.push_back(fully_shard(block.ptr(), options));
    block->at_forward = look;
  }
  const FSDPModule root = fully_shard(model.ptr(), options);
  materialize_module(model.ptr());
  look();
  AdamW optimizer(root, {.lr = 1e-2});
  for (int64_t step = 0; step < 2; ++step) {
    model(at::ones({4, width})).square().mean().backward();
    look();
    clip_grad_norm_(root, 1.0);
    look();
    optimizer.step();
    look();
    optimizer.zero_grad();
  }
  for (size_t i = 0; i < units.size(); ++i) {
    const ModelStateDict dict =
        get_model_state_dict(units[i], {.full_state_dict = true, .cpu_offload = true});
    if (!dict.is_empty()) {
      save(dict, folder + "/unit" + std::to_string(i) + ".pt");
    }
    look();
  }
}

/// The peak beyond the beginning: first in bytes, then what it consists of.
std::string run_rank(const Course& course, int64_t rank, int port, const std::string& folder) {
  // glibc would raise this to the largest block that is freed, and keep so large ones in a heap.
  ::mallopt(M_MMAP_THRESHOLD, 128 << 10);
  ProcessGroupOptions options;
  options.backend = course.backend;
  options.rank = rank;
  options.world_size = kRanks;
  options.master_port = port;
  const std::shared_ptr<Collectives> world = init_process_group(options);
  FullyShardOptions sharding{.mesh = init_device_mesh(c10::kCPU, {kRanks}, {"dp_shard"}, world)};
  if (course.is_on_disk) {
    sharding.offload_policy = DiskOffloadPolicy{folder};
  }
  train_and_save(/*length=*/1, kWidth, sharding, folder, [] {});
  world->barrier();
  const Pss before = pss_now();
  world->barrier();
  PeakPss peak;
  train_and_save(kBlocks, kWidth, sharding, folder, [&peak] { peak.look(); });
  const Pss most = peak.end();
  world->barrier();
  std::ostringstream text;
  text << most.all() - before.all() << " more bytes: " << most.of_nothing - before.of_nothing
       << " of nothing, " << most.of_offload - before.of_offload << " of offload's files, "
       << most.of_shared_memory - before.of_shared_memory << " shared";
  return text.str();
}

/// What rank 0 has saved is there, and is no initial value.
void expect_saved(const std::string& folder) {
  torch::manual_seed(3);
  const Chain initial(kBlocks, kWidth);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const ModelStateDict dict = load(folder + "/unit" + std::to_string(i) + ".pt");
    const auto& weight = std::get<at::Tensor>(dict["linear.weight"]);
    const at::Tensor& before = initial.blocks[static_cast<size_t>(i)]->linear->weight;
    const double moved = (weight - before.detach()).abs().max().item<double>();
    EXPECT_GT(moved, 1e-3) << "unit " << i;  // two steps of AdamW with a rate of 0.01
    EXPECT_LT(moved, 0.03) << "unit " << i;
  }
}

class OffloadMemoryTest : public ::testing::TestWithParam<Course> {};

TEST_P(OffloadMemoryTest, PeakOfEachRankIsBelowItsBound) {
  const Course& course = GetParam();
  std::string folder = ::testing::TempDir() + "offload-memory-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  RankProcesses ranks(kRanks, /*are_apart=*/false,
                      [&](int64_t rank, int port, const LinePipe& lines) {
                        lines.write(run_rank(course, rank, port, folder));
                      });
  const auto store = serve_store();
  ranks.begin(store->getPort());
  for (int64_t rank = 0; rank < kRanks; ++rank) {
    const std::optional<std::string> line = ranks.read(std::chrono::minutes(2));
    ASSERT_TRUE(line) << "a rank has said nothing";
    ASSERT_NE(line->find_first_of("0123456789"), std::string::npos) << *line;
    ASSERT_EQ(line->find("error"), std::string::npos) << *line;
    const auto part = static_cast<double>(std::stoll(*line)) / static_cast<double>(kModelBytes);
    RecordProperty("part_of_the_model_" + std::to_string(rank), std::to_string(part));
    std::printf("%s: %.3f of %.1f MiB, %s\n", course.name.c_str(), part,
                static_cast<double>(kModelBytes) / (1 << 20), line->c_str());
    EXPECT_LT(part, course.most) << *line;
  }
  expect_saved(folder);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Courses, OffloadMemoryTest,
                         ::testing::Values(Course{"in_memory", "shm", false, 0.4},
                                           Course{"on_disk", "shm", true, 0.15},
                                           Course{"on_disk_over_sockets", "gloo", true, 0.35}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
