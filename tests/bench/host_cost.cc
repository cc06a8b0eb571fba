// What wrapping costs on the host: forward and backward of a chain of tiny units, plain and sharded
// over a group whose collectives are over when they are issued.
//
//   host_cost [TURNS [ITERATIONS]]
//
// Each turn measures the models one after the other and prints a line: microseconds of CPU time per
// iteration of the plain model, of the one whose units are all-gathered into slots, of the one
// whose units are gathered through windows. bench_host.py compares them, and FSDP2
// (fsdp2_host_cost.py).

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
  /// `group`: null for the plain model.
  explicit Side(const std::shared_ptr<fsdp::Collectives>& group)
      : model_(std::make_shared<Chain>()), input_(at::ones({kBatch, kWidth}).requires_grad_()) {
    if (group) {
      fsdp::FullyShardOptions options;
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

int run(int turns, int iterations) {
  at::set_num_threads(1);
  Side plain(nullptr);
  Side sharded(std::make_shared<fsdp::bench::InstantCollectives>(kRanks, 0));
  Side windowed(std::make_shared<fsdp::bench::InstantCollectives>(kRanks, kWindowAlignment));
  for (int turn = 0; turn < turns; ++turn) {
    const double of_plain = plain.us_per_iteration(iterations);
    const double of_sharded = sharded.us_per_iteration(iterations);
    const double of_windowed = windowed.us_per_iteration(iterations);
    std::cout << of_plain << ' ' << of_sharded << ' ' << of_windowed << std::endl;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const int turns = argc > 1 ? std::atoi(argv[1]) : 15;
  const int iterations = argc > 2 ? std::atoi(argv[2]) : 200;
  if (argc > 3 || turns < 1 || iterations < 1) {
    std::cerr << "usage: host_cost [TURNS [ITERATIONS]]\n";
    return 2;
  }
  return run(turns, iterations);
}
