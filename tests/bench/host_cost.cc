// What wrapping costs on the host: forward and backward of a chain of tiny units, plain and sharded
// over a group whose collectives are over when they are issued.
//
//   host_cost [TURNS [ITERATIONS [policies]]]
//
// Each turn measures the models one after the other and prints a line: microseconds of CPU time per
// iteration of the plain model, of the one whose units are all-gathered into slots, of the one
// whose units are gathered through windows. bench_host.py compares them, and FSDP2
// (fsdp2_host_cost.py); bench_host_builds.py compares two builds.
//
// policies: a line has the plain model, the one with default options, and those whose root has
// backward_prefetch kBackwardPost, none, no forward_prefetch, and limit_all_gathers 1; all are
// gathered into slots.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fsdp/fully_shard.h>
#include <fsdp/optim.h>
#include <fsdp/unit.h>
#include <time.h>
#include <torch/nn/module.h>

#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tests/bench/instant_collectives.h"

namespace {

constexpr int64_t kUnits = 16;
constexpr int64_t kLinears = 9;  // of a unit
constexpr int64_t kWidth = 8;
constexpr int64_t kBatch = 2;
constexpr int kWarmUps = 20;
constexpr int64_t kRanks = 2;
// In bytes; less than a page, or such small units would have none.
constexpr int64_t kWindowAlignment = 64;

struct Block : torch::nn::Module {
  Block() {
    for (int64_t i = 0; i < kLinears; ++i) {
      weights.push_back(register_parameter("weight" + std::to_string(i), at::eye(kWidth)));
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const at::Tensor& weight : weights) {
      x = at::linear(x, weight);
    }
    return x;
  }
  std::vector<at::Tensor> weights;
};

struct Chain : torch::nn::Module {
  Chain() {
    for (int64_t i = 0; i < kUnits; ++i) {
      blocks.emplace_back(std::make_shared<Block>());
      register_module("block" + std::to_string(i), blocks.back().ptr());
    }
  }
  at::Tensor forward(at::Tensor x) {
    for (const fsdp::Unit<Block>& block : blocks) {
      x = block(x);
    }
    return x;
  }
  std::vector<fsdp::Unit<Block>> blocks;
};

/// Of this thread, which does all of it and never waits: what others do on the machine counts less.
double cpu_us() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return 1e6 * static_cast<double>(time.tv_sec) + 1e-3 * static_cast<double>(time.tv_nsec);
}

class Side {
 public:
  /// `group`: null for the plain model. `options`: without a mesh.
  explicit Side(const std::shared_ptr<fsdp::Collectives>& group,
                fsdp::FullyShardOptions options = {})
      : model_(std::make_shared<Chain>()), input_(at::ones({kBatch, kWidth}).requires_grad_()) {
    if (group) {
      options.mesh = fsdp::init_device_mesh(c10::kCPU, {group->size()}, {"dp_shard"}, group);
      for (const fsdp::Unit<Block>& block : model_->blocks) {
        fsdp::fully_shard(block.ptr(), options);
      }
      optimizer_.emplace(fsdp::fully_shard(model_.ptr(), options), fsdp::AdamWOptions());
    }
  }

  double us_per_iteration(int iterations) {
    run(kWarmUps);
    const double begin = cpu_us();
    run(iterations);
    return (cpu_us() - begin) / iterations;
  }

 private:
  void run(int iterations) {
    for (int i = 0; i < iterations; ++i) {
      model_(input_).sum().backward();
      drop_gradients();
    }
  }

  void drop_gradients() {
    input_.mutable_grad().reset();
    if (optimizer_) {
      optimizer_->zero_grad();
      return;
    }
    for (const fsdp::Unit<Block>& block : model_->blocks) {
      for (const at::Tensor& weight : block->weights) {
        weight.mutable_grad().reset();
      }
    }
  }

  fsdp::Unit<Chain> model_;
  at::Tensor input_;
  std::optional<fsdp::AdamW> optimizer_;  // of the sharded model
};

std::shared_ptr<fsdp::Collectives> group_with(int64_t window_alignment) {
  return std::make_shared<fsdp::bench::InstantCollectives>(kRanks, window_alignment);
}

/// Sides that hold their models while others are measured, the plain one first.
using Sides = std::vector<std::unique_ptr<Side>>;

Sides slots_and_windows() {
  Sides sides;
  sides.push_back(std::make_unique<Side>(nullptr));
  sides.push_back(std::make_unique<Side>(group_with(0)));
  sides.push_back(std::make_unique<Side>(group_with(kWindowAlignment)));
  return sides;
}

Sides prefetch_policies() {
  std::vector<fsdp::FullyShardOptions> policies(5);
  policies[1].backward_prefetch = fsdp::BackwardPrefetch::kBackwardPost;
  policies[2].backward_prefetch = std::nullopt;
  policies[3].forward_prefetch = false;
  policies[4].limit_all_gathers = 1;
  Sides sides;
  sides.push_back(std::make_unique<Side>(nullptr));
  for (const fsdp::FullyShardOptions& policy : policies) {
    sides.push_back(std::make_unique<Side>(group_with(0), policy));
  }
  return sides;
}

int run(int turns, int iterations, const Sides& sides) {
  for (int turn = 0; turn < turns; ++turn) {
    for (const std::unique_ptr<Side>& side : sides) {
      std::cout << (side == sides.front() ? "" : " ") << side->us_per_iteration(iterations);
    }
    std::cout << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 15;
  const int iterations = argc > 2 ? std::atoi(argv[2]) : 200;
  const bool has_policies = argc == 4 && std::string(argv[3]) == "policies";
  if (argc > 4 || (argc == 4 && !has_policies) || turns < 1 || iterations < 1) {
    std::cerr << "usage: host_cost [TURNS [ITERATIONS [policies]]]\n";
    return 2;
  }
  at::set_num_threads(1);
  return run(turns, iterations, has_policies ? prefetch_policies() : slots_and_windows());
}
