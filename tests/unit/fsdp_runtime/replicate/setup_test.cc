#include <fsdp/fully_shard.h>
#include <torch/nn/modules/linear.h>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

template <class F>
std::string setup_error(F&& run) {
  try {
    run();
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  }
  return "";
}

/// A running count in a buffer, and one number.
struct Counting : torch::nn::Module {
  explicit Counting(int64_t rows = 4) {
    weight = register_parameter("weight", at::ones({rows, 4}));
    count = register_buffer("count", at::zeros({}, at::kLong));
    mean = register_buffer("mean", at::zeros({4}));
  }
  at::Tensor forward(const at::Tensor& x) {
    seen = count.item<int64_t>();
    at::NoGradGuard no_grad;
    count.add_(1);
    mean.copy_(x.mean(0));
    at::AutoGradMode grad(true);
    return at::linear(x, weight);
  }
  at::Tensor weight, count, mean;
  int64_t seen = -1;
};

TEST(ReplicateSetupTest, RanksWithOtherShapesAreNamedOnAllRanks) {
  run_replicas("local", 3, [](Replica& replica) {
    const auto model = std::make_shared<Counting>(replica.rank == 2 ? 5 : 4);
    const std::string text =
        setup_error([&] { DistributedDataParallel ddp(model, replica.options()); });
    const std::string who = replica.rank == 2 ? "" : "rank 2: ";
    EXPECT_NE(text.find(": " + who + "parameter weight of shape [5, 4]"), std::string::npos)
        << text;
    EXPECT_NE(text.find("where rank 0 has parameter weight of shape [4, 4]"), std::string::npos)
        << text;
  });
}

TEST(ReplicateSetupTest, WhatCannotBeReplicatedIsRefused) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallelOptions options = replica.options();
    const auto refusal_of = [&](const std::shared_ptr<torch::nn::Module>& module) {
      return setup_error([&] { (void)replicate(module, options); });
    };
    EXPECT_NE(refusal_of(nullptr).find("module is null"), std::string::npos);
    EXPECT_NE(refusal_of(std::make_shared<torch::nn::Module>("bare")).find("no parameter that"),
              std::string::npos);
    const auto model = std::make_shared<Counting>();
    options.params_and_buffers_to_ignore = {"wheight"};
    EXPECT_NE(refusal_of(model).find("wheight"), std::string::npos);
    options.params_and_buffers_to_ignore = {};
    options.bucket_cap_mb = 0;
    EXPECT_NE(refusal_of(model).find("bucket_cap_mb"), std::string::npos);
    options.bucket_cap_mb = 25;
    const auto sharded = std::make_shared<Counting>();
    const auto mesh = init_device_mesh(c10::kCPU, {2}, {"dp_shard"}, replica.comm);
    fully_shard(sharded, {.mesh = mesh});
    EXPECT_NE(refusal_of(sharded).find("has been sharded"), std::string::npos);
  });
}

TEST(ReplicateSetupTest, OptionsThatAreWrongOnOneRankAreAnErrorOnAllAndTheGroupIsFine) {
  run_replicas("local", 2, [](Replica& replica) {
    const auto model = std::make_shared<Counting>();
    const auto refusal_of = [&](const DistributedDataParallelOptions& wrong) {
      return setup_error(
          [&] { (void)replicate(model, replica.rank == 1 ? wrong : replica.options()); });
    };
    DistributedDataParallelOptions wrong = replica.options();
    wrong.params_and_buffers_to_ignore = {"wheight"};
    const std::string of_name = refusal_of(wrong);
    EXPECT_NE(of_name.find("wheight of params_and_buffers_to_ignore"), std::string::npos)
        << of_name;
    wrong = replica.options();
    wrong.bucket_cap_mb = -1;
    const std::string of_cap = refusal_of(wrong);
    EXPECT_NE(of_cap.find("bucket_cap_mb is -1"), std::string::npos) << of_cap;
    (void)replicate(model, replica.options());
  });
}

TEST(ReplicateSetupTest, StartsWithWhatRankZeroHas) {
  run_replicas("gloo", 2, [](Replica& replica) {
    auto model = std::make_shared<Counting>();
    at::NoGradGuard no_grad;
    model->weight.fill_(replica.rank + 3);
    model->count.fill_(replica.rank + 5);
    DistributedDataParallelOptions options = replica.options();
    options.init_sync = false;
    { const ReplicateModule replicated = replicate(model, options); }
    EXPECT_EQ(model->count.item<int64_t>(), replica.rank + 5);
    options.init_sync = true;
    options.params_and_buffers_to_ignore = {"mean"};
    model->mean.fill_(replica.rank);
    { const ReplicateModule replicated = replicate(model, options); }
    EXPECT_TRUE(at::equal(model->weight, at::full({4, 4}, 3.0)));
    EXPECT_EQ(model->count.item<int64_t>(), 5);
    EXPECT_EQ(model->mean[0].item<float>(), static_cast<float>(replica.rank));
  });
}

TEST(ReplicateBuffersTest, AreThoseOfRankZeroInEachForwardThatIsSynced) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Counting>(), replica.options());
    const at::Tensor x = at::ones({2, 4}) * static_cast<double>(replica.rank + 1);
    const auto disturb = [&] { ddp->count.add_(100 * replica.rank); };
    disturb();
    ddp(x).sum().backward();
    EXPECT_EQ(ddp->seen, 0);
    disturb();
    ddp(x).sum().backward();
    EXPECT_EQ(ddp->seen, 1);
    {
      const NoSync no_sync = ddp.no_sync();
      ddp(x).sum().backward();  // the forward before was synced, so this one sends them
    }
    disturb();
    ddp(x).sum().backward();  // as PyTorch, not behind one that was not
    EXPECT_EQ(ddp->seen, 3 + 100 * replica.rank);
    ddp(x).sum().backward();
    EXPECT_EQ(ddp->seen, 4);
    disturb();
    ddp->forward(x);
    EXPECT_EQ(ddp->seen, 5 + 100 * replica.rank) << "a direct call sends none";
  });
}

TEST(ReplicateSetupTest, TakesHoldersAndWhatTheirForwardReturns) {
  run_replicas("local", 2, [](Replica& replica) {
    torch::nn::Linear linear(3, 2);
    DistributedDataParallel ddp(linear, replica.options());
    static_assert(std::is_same_v<decltype(ddp), DistributedDataParallel<torch::nn::LinearImpl>>);
    ddp(at::ones({1, 3}) * static_cast<double>(replica.rank)).sum().backward();
    EXPECT_TRUE(at::equal(linear->weight.grad(), at::full({2, 3}, 0.5)));
  });
}

TEST(ReplicateGradientTest, ThatIsSparseIsRefusedWithItsName) {
  struct Table : torch::nn::Module {
    at::Tensor forward(const at::Tensor& index) {
      return at::embedding(table, index, -1, false, /*sparse=*/true);
    }
    at::Tensor table = register_parameter("table", at::ones({5, 2}));
  };
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Table>(), replica.options());
    const std::string text = setup_error([&] { ddp(at::zeros({2}, at::kLong)).sum().backward(); });
    EXPECT_NE(text.find("the gradient of table is Sparse"), std::string::npos) << text;
  });
}

}  // namespace
}  // namespace fsdp::testing
