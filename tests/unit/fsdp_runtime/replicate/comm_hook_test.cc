#include <fsdp/ddp_comm_hooks.h>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

std::map<std::string, at::Tensor> toy_means(int64_t ranks) {
  return mean_gradients<ToyModel>(
      ranks, [] { return whole_toy(); },
      [](ToyModel& model, int64_t rank) { toy_loss_of(model, 0, rank).backward(); });
}

TEST(CommHookTest, SeesTheBucketsInOrderAndItsResultIsTheGradient) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    std::vector<size_t> indices;
    std::vector<bool> lasts;
    std::vector<std::string> names;
    ddp.register_comm_hook([&](GradBucket& bucket) -> CommHookResult {
      indices.push_back(bucket.index());
      lasts.push_back(bucket.is_last());
      names.insert(names.end(), bucket.names().begin(), bucket.names().end());
      const at::Tensor other = bucket.buffer().to(at::kDouble) * 0 + 7;
      EXPECT_EQ(bucket.gradients().size(), bucket.names().size());
      return {nullptr, other};
    });
    const size_t count = ddp.buckets().size();
    toy_loss(ddp, 0, replica.rank).backward();
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(indices.at(i), i);
      EXPECT_EQ(lasts.at(i), i + 1 == count);
    }
    EXPECT_EQ(indices.size(), count);
    EXPECT_EQ(names.size(), 14u);
    EXPECT_TRUE(at::equal(ddp->gain.grad(), at::full_like(ddp->gain, 7)));
  });
}

TEST(CommHookTest, MayReturnWhatIsNotContiguous) {
  struct Grid : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) { return (grid * x).sum(); }
    at::Tensor grid = register_parameter("grid", at::zeros({6, 4}));
  };
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Grid>(), replica.options());
    ddp.register_comm_hook([](GradBucket& bucket) -> CommHookResult {
      return {nullptr, bucket.buffer().view({6, 4}).t().contiguous().t()};
    });
    const at::Tensor x = at::arange(24, at::kFloat).view({6, 4});
    ddp(x).backward();
    EXPECT_TRUE(at::equal(ddp->grid.grad(), x));
  });
}

TEST(CommHookTest, OfTheMeanDoesWhatNoHookDoes) {
  run_replicas("gloo", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    ddp.register_comm_hook(allreduce_hook());
    toy_loss(ddp, 0, replica.rank).backward();
    expect_gradients(*ddp.module(), toy_means(2));
  });
}

TEST(CommHookTest, CompressesToHalfTheBytes) {
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16}) {
    run_replicas("local", 2, [dtype](Replica& replica) {
      DistributedDataParallel ddp(whole_toy(), replica.options());
      ddp.register_comm_hook(dtype == at::kHalf ? fp16_compress_hook() : bf16_compress_hook());
      for (int step = 0; step < 2; ++step) {
        ddp->zero_grad();
        replica.comm->clear();
        toy_loss(ddp, 0, replica.rank).backward();
      }
      for (const CollectiveRecord& record : replica.comm->records()) {
        EXPECT_TRUE(record.operation != "all_reduce" || record.dtype == c10::toString(dtype));
      }
      std::vector<std::shared_ptr<ToyModel>> models = {whole_toy(), whole_toy()};
      for (int64_t rank = 0; rank < 2; ++rank) {
        toy_loss_of(*models[static_cast<size_t>(rank)], 0, rank).backward();
      }
      const auto part = [&](size_t rank, const std::string& name) {
        return models[rank]->named_parameters()[name].grad().to(dtype).div_(2.0);
      };
      for (const auto& param : ddp->named_parameters()) {
        const at::Tensor expected = (part(0, param.key()) + part(1, param.key())).to(at::kFloat);
        EXPECT_TRUE(at::equal(param.value().grad(), expected)) << param.key();
      }
    });
  }
}

/// A gradient that is the same in each backward, of full rank, and one that is not compressed.
struct Steady : torch::nn::Module {
  at::Tensor forward(const at::Tensor& wanted) {
    return (weight * wanted).sum() + (bias * wanted.sum(1)).sum();
  }
  at::Tensor weight = register_parameter("weight", at::zeros({12, 12}));
  at::Tensor bias = register_parameter("bias", at::zeros({12}));
};

at::Tensor steady_gradient(int64_t rank) {
  return (at::arange(144, at::kDouble) * (rank + 1.5)).sin().to(at::kFloat).view({12, 12});
}

TEST(PowerSGDTest, WhatIsLeftOutComesLater) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Steady>(), replica.options());
    ddp.register_comm_hook(
        powerSGD_hook({.matrix_approximation_rank = 2, .start_powerSGD_iter = 2}));
    const at::Tensor mean = (steady_gradient(0) + steady_gradient(1)) / 2;
    at::Tensor sum = at::zeros({12, 12});
    constexpr int kSteps = 60;
    for (int step = -2; step < kSteps; ++step) {
      ddp->zero_grad();
      replica.comm->clear();
      ddp(steady_gradient(replica.rank)).backward();
      EXPECT_TRUE(at::allclose(ddp->bias.grad(), mean.sum(1), 1e-5, 1e-5));
      if (step < 0) {
        EXPECT_TRUE(at::allclose(ddp->weight.grad(), mean, 1e-6, 1e-7)) << "without loss at first";
        continue;
      }
      sum += ddp->weight.grad();
      for (const CollectiveRecord& record : replica.comm->records()) {
        EXPECT_LE(record.numel, 36) << "two factors of 12 x 2, one with the bias behind it";
      }
    }
    // The rest of a rank-2 approximation of 12 x 12 is bounded; so is what has not come yet.
    const at::Tensor left_out = (sum / kSteps - mean).norm() / mean.norm();
    EXPECT_LT(left_out.item<float>(), 0.2);
    EXPECT_GT((ddp->weight.grad() - mean).norm().item<float>(), 0.3 * mean.norm().item<float>())
        << "one step alone is a rough approximation";
  });
}

TEST(PowerSGDTest, GradientsOfItsRankAreExactAndOptionsOutOfRangeAreRefused) {
  EXPECT_THROW(powerSGD_hook({.matrix_approximation_rank = 0}), c10::Error);
  EXPECT_THROW(powerSGD_hook({.start_powerSGD_iter = 1}), c10::Error);
  run_replicas("gloo", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Steady>(), replica.options());
    ddp.register_comm_hook(powerSGD_hook({.start_powerSGD_iter = 2}));
    const at::Tensor column = at::arange(12, at::kFloat).sub(5).view({12, 1});
    const auto gradient = [&](int64_t rank) {
      return column.matmul(steady_gradient(rank).narrow(0, 0, 1));
    };
    for (int step = 0; step < 4; ++step) {
      ddp->zero_grad();
      ddp(gradient(replica.rank)).backward();
      EXPECT_TRUE(at::allclose(ddp->weight.grad(), (gradient(0) + gradient(1)) / 2, 1e-4, 1e-5));
    }
  });
}

TEST(CommHookTest, IsOneAndComesBeforeBackward) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Branches>(), [&] {
      auto options = replica.options();
      options.params_and_buffers_to_ignore = {"spare", "never"};
      return options;
    }());
    EXPECT_THROW(ddp.register_comm_hook({}), c10::Error);
    ddp.register_comm_hook([](GradBucket&) -> CommHookResult { return {nullptr, at::ones({1})}; });
    EXPECT_THROW(ddp.register_comm_hook(allreduce_hook()), c10::Error);
    EXPECT_THROW(ddp(at::ones({1, 4})).sum().backward(), c10::Error) << "1 element is not 16";
  });
}

}  // namespace
}  // namespace fsdp::testing
