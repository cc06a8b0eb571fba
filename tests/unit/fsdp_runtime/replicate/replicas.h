#pragma once

#include <ATen/ATen.h>
#include <fsdp/distributed_data_parallel.h>
#include <fsdp/fully_shard.h>
#include <gtest/gtest.h>
#include <torch/nn/module.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/comm/ranks.h"
#include "tests/unit/fsdp_runtime/engine/toy_model.h"

namespace fsdp::testing {

/// What a rank's thread works with.
struct Replica {
  int64_t rank = 0;
  int64_t size = 1;
  std::shared_ptr<RecordingCollectives> comm;

  /// Many small buckets.
  DistributedDataParallelOptions options() const {
    return {.process_group = comm, .bucket_cap_mb = 0.002};
  }
};

/// Runs `body` on one thread per rank; whoever leaves it leaves the group. By rank, its error.
inline std::vector<std::string> errors_of_replicas(const std::string& backend, int64_t size,
                                                   const std::function<void(Replica&)>& body) {
  return run_backend(backend, size, [&body](Collectives& group) {
    // The group belongs to the thread, and outlives what is made with it.
    const std::shared_ptr<Collectives> lent(std::shared_ptr<void>(), &group);
    Replica replica{group.rank(), group.size(), std::make_shared<RecordingCollectives>(lent)};
    body(replica);
    group.barrier();
  });
}

inline void run_replicas(const std::string& backend, int64_t size,
                         const std::function<void(Replica&)>& body) {
  const std::vector<std::string> errors = errors_of_replicas(backend, size, body);
  EXPECT_EQ(errors, std::vector<std::string>(static_cast<size_t>(size)));
}

/// A toy model that uses all of its parameters.
inline std::shared_ptr<ToyModel> whole_toy(const ToyConfig& config = {}) {
  std::shared_ptr<ToyModel> model = make_plain(config).ptr();
  for (const Unit<ToyBlock>& block : model->blocks) {
    block->use_spare = true;
  }
  return model;
}

inline at::Tensor toy_loss(const DistributedDataParallel<ToyModel>& model, int64_t step,
                           int64_t rank) {
  const at::Tensor tokens = tokens_of(model->config, step, rank);
  return loss_of(model(tokens), tokens);
}

inline at::Tensor toy_loss_of(ToyModel& model, int64_t step, int64_t rank) {
  const at::Tensor tokens = tokens_of(model.config, step, rank);
  return loss_of(model.forward(tokens), tokens);
}

/// Two layers and a spare one; small numbers that are the same everywhere.
struct Branches : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::linear(at::linear(x, first), second);
    return uses_spare ? at::linear(y, spare) : y;
  }
  static at::Tensor values(double seed) {
    return ((at::arange(16, at::kDouble) + seed) * 12.9898).sin().to(at::kFloat).view({4, 4});
  }
  bool uses_spare = false;
  at::Tensor first = register_parameter("first", values(1));
  at::Tensor second = register_parameter("second", values(2));
  at::Tensor spare = register_parameter("spare", values(3));
  at::Tensor never = register_parameter("never", values(4));
};

/// The mean over ranks of the gradients of plain models, with zeros where a rank has none; by name,
/// without those that no rank has.
template <class M>
std::map<std::string, at::Tensor> mean_gradients(int64_t ranks,
                                                 const std::function<std::shared_ptr<M>()>& make,
                                                 const std::function<void(M&, int64_t)>& backward) {
  std::map<std::string, at::Tensor> mean;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const std::shared_ptr<M> model = make();
    backward(*model, rank);
    for (const auto& param : model->named_parameters()) {
      if (param.value().grad().defined()) {
        at::Tensor& sum = mean[param.key()];
        const at::Tensor part = param.value().grad() * (1.0 / static_cast<double>(ranks));
        sum = sum.defined() ? sum + part : part;
      }
    }
  }
  return mean;
}

/// Bit by bit: sums run in the order of ranks.
inline void expect_gradients(const torch::nn::Module& model,
                             const std::map<std::string, at::Tensor>& expected) {
  for (const auto& param : model.named_parameters()) {
    const auto found = expected.find(param.key());
    const at::Tensor& gradient = param.value().grad();
    ASSERT_EQ(gradient.defined(), found != expected.end()) << param.key();
    if (gradient.defined()) {
      EXPECT_TRUE(at::equal(gradient, found->second))
          << param.key() << " differs by " << (gradient - found->second).abs().max();
    }
  }
}

}  // namespace fsdp::testing
