#include <torch/csrc/autograd/autograd.h>
#include <torch/optim/sgd.h>

#include <mutex>
#include <set>
#include <tuple>

#include "tests/unit/fsdp_runtime/engine/counted_memory.h"
#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

class ReplicateTest : public ::testing::TestWithParam<std::tuple<std::string, int64_t>> {};

TEST_P(ReplicateTest, TrainsAsOneProcessWithTheMeanOfRanks) {
  const auto [backend, size] = GetParam();
  run_replicas(backend, size, [](Replica& replica) {
    const auto plain = whole_toy();
    torch::optim::SGD plain_optimizer(plain->parameters(), 0.1);
    DistributedDataParallel ddp(whole_toy(), replica.options());
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    for (int64_t step = 0; step < 3; ++step) {
      optimizer.zero_grad(/*set_to_none=*/step != 1);
      toy_loss(ddp, step, replica.rank).backward();
      const auto expected = mean_gradients<ToyModel>(
          replica.size,
          [&] {
            auto copy = whole_toy();
            at::NoGradGuard no_grad;
            for (const auto& param : copy->named_parameters()) {
              param.value().copy_(plain->named_parameters()[param.key()]);
            }
            return copy;
          },
          [step](ToyModel& model, int64_t rank) { toy_loss_of(model, step, rank).backward(); });
      if (step != 1) {  // where gradients are in their buckets, and are divided, not multiplied
        expect_gradients(*ddp.module(), expected);
      }
      for (const auto& param : plain->named_parameters()) {
        ASSERT_TRUE(at::allclose(ddp->named_parameters()[param.key()].grad(),
                                 expected.at(param.key()), 1e-6, 1e-8))
            << param.key();
        param.value().mutable_grad() = ddp->named_parameters()[param.key()].grad().clone();
      }
      optimizer.step();
      plain_optimizer.step();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, ReplicateTest,
                         ::testing::Values(std::make_tuple("local", 1), std::make_tuple("local", 2),
                                           std::make_tuple("local", 3), std::make_tuple("gloo", 2),
                                           std::make_tuple("gloo", 3)),
                         [](const auto& info) {
                           return std::get<0>(info.param) + std::to_string(std::get<1>(info.param));
                         });

TEST(ReplicateBucketsTest, FollowTheOrderOfGradientsFromTheSecondBackwardOn) {
  std::mutex mu;
  std::set<std::vector<std::vector<std::string>>> after;  // guarded by mu
  run_replicas("local", 2, [&](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    const auto before = ddp.buckets();
    ASSERT_GT(before.size(), 3u);
    EXPECT_EQ(before.front().front(), "block2.spare") << "the last registered one is first";
    toy_loss(ddp, 0, replica.rank).backward();
    EXPECT_NE(ddp.buckets(), before);
    EXPECT_EQ(ddp.buckets().back().back(), "embedding") << "tied to the head, used first";
    const auto rebuilt = ddp.buckets();
    replica.comm->clear();
    toy_loss(ddp, 1, replica.rank).backward();
    EXPECT_EQ(ddp.buckets(), rebuilt);
    std::vector<int64_t> reduced;
    for (const CollectiveRecord& record : replica.comm->records()) {
      if (record.operation == "all_reduce") {
        reduced.push_back(record.numel);
      }
    }
    EXPECT_EQ(reduced.size(), rebuilt.size()) << "one all-reduce for each, and nothing else";
    std::lock_guard lock(mu);
    after.insert(rebuilt);
  });
  EXPECT_EQ(after.size(), 1u);
}

TEST(ReplicateBucketsTest, AreReducedWhileBackwardGoesOn) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    toy_loss(ddp, 0, replica.rank).backward();
    replica.comm->clear();
    size_t issued = 0;
    ddp->blocks[0]->up.register_hook(
        [&](const at::Tensor&) { issued = replica.comm->records().size(); });
    toy_loss(ddp, 1, replica.rank).backward();
    EXPECT_GT(issued, 1u);
  });
}

TEST(ReplicateGradientTest, IsPartOfABucketThatOptimizersCanDetachAndZero) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Branches>(), [&] {
      auto options = replica.options();
      options.params_and_buffers_to_ignore = {"spare", "never"};
      return options;
    }());
    torch::optim::SGD optimizer(ddp->parameters(), 0.1);
    const auto run = [&] { ddp(at::ones({2, 4}) * (replica.rank + 1)).sum().backward(); };
    run();
    run();  // without zero_grad(): a sum of means
    const void* const at = ddp->first.grad().const_data_ptr();
    const at::Tensor twice = ddp->first.grad().clone();
    optimizer.zero_grad(/*set_to_none=*/false);
    EXPECT_EQ(ddp->first.grad().abs().max().item<float>(), 0);
    run();
    EXPECT_EQ(ddp->first.grad().const_data_ptr(), at);
    EXPECT_TRUE(at::equal(ddp->first.grad() * 2, twice));
    optimizer.zero_grad();
    EXPECT_FALSE(ddp->first.grad().defined());
    run();
    EXPECT_EQ(ddp->first.grad().const_data_ptr(), at);
  });
}

TEST(ReplicateGradientTest, ThatIsReplacedIsTakenToTheBucketByTheNextBackward) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    const auto run = [&] { toy_loss(ddp, 1, replica.rank).backward(); };
    run();  // and the buckets are made anew
    ddp->zero_grad();
    run();
    at::Tensor& gradient = ddp->gain.mutable_grad();
    const void* const in_bucket = gradient.const_data_ptr();
    const at::Tensor alone = gradient.clone();
    ddp->zero_grad();
    gradient = at::full_like(alone, 3);
    run();
    EXPECT_EQ(gradient.const_data_ptr(), in_bucket);
    EXPECT_TRUE(at::allclose(gradient, alone + 3)) << "with what it had";
  });
}

TEST(ReplicateGradientTest, KeepsTheStridesOfItsParameterAndItsDtype) {
  struct Mixed : torch::nn::Module {
    at::Tensor forward(const at::Tensor& x) {
      return at::linear(x, turned).sum() + at::linear(x.to(at::kDouble), wide).sum().to(at::kFloat);
    }
    at::Tensor turned = register_parameter("turned", at::ones({6, 4}).t());
    at::Tensor wide = register_parameter("wide", at::ones({3, 6}, at::kDouble));
    at::Tensor frozen = register_parameter("frozen", at::ones({3}), /*requires_grad=*/false);
  };
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Mixed>(),
                                {.process_group = replica.comm, .bucket_cap_mb = 25});
    EXPECT_EQ(ddp.buckets().size(), 2u) << "one for each dtype";
    for (int step = 0; step < 2; ++step) {
      ddp->zero_grad();
      ddp(at::ones({2, 6}) * (replica.rank + 1)).backward();
      EXPECT_EQ(ddp->turned.grad().strides(), ddp->turned.strides());
      EXPECT_TRUE(at::equal(ddp->turned.grad(), at::full({4, 6}, 3.0)));
      EXPECT_TRUE(at::equal(ddp->wide.grad(), at::full({3, 6}, 3.0, at::kDouble)));
      EXPECT_FALSE(ddp->frozen.grad().defined());
    }
  });
}

TEST(ReplicateGradientTest, IsSummedUpOnThisRankInNoSync) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(whole_toy(), replica.options());
    for (int round = 0; round < 2; ++round) {
      ddp->zero_grad();
      replica.comm->clear();
      {
        const NoSync no_sync = ddp.no_sync();
        toy_loss(ddp, 0, replica.rank).backward();
        EXPECT_TRUE(replica.comm->records().empty());
      }
      toy_loss(ddp, 1, replica.rank).backward();
      expect_gradients(*ddp.module(), mean_gradients<ToyModel>(
                                          2, [] { return whole_toy(); },
                                          [](ToyModel& model, int64_t rank) {
                                            toy_loss_of(model, 0, rank).backward();
                                            toy_loss_of(model, 1, rank).backward();
                                          }));
    }
  });
}

TEST(ReplicateGradientTest, IsLeftAloneByGradAndOnceNobodyHasAHandle) {
  run_replicas("local", 2, [](Replica& replica) {
    const auto model = whole_toy();
    {
      DistributedDataParallel ddp(model, replica.options());
      replica.comm->clear();
      const at::Tensor loss = toy_loss(ddp, 0, replica.rank);
      const auto gradients = torch::autograd::grad({loss}, {model->gain});
      EXPECT_TRUE(gradients[0].defined());
      EXPECT_FALSE(model->gain.grad().defined());
    }
    toy_loss_of(*model, 0, replica.rank).backward();
    EXPECT_TRUE(replica.comm->records().empty());
  });
}

TEST(ReplicateMemoryTest, StepsAllocateWhatAutogradAllocates) {
  constexpr int64_t kLeast = 64;  // but for numbers that ranks compare
  const auto count = std::make_shared<MemoryCount>();
  std::vector<int64_t> plain_sizes;
  std::vector<int64_t> sizes;
  {
    const CountingAllocator counting(count);
    run_replicas("local", 2, [&](Replica& replica) {
      const auto plain = whole_toy();
      DistributedDataParallel ddp(whole_toy(), replica.options());
      const auto step_of = [&](const std::function<at::Tensor()>& loss, auto& model,
                               std::vector<int64_t>& noted) {
        for (int step = 0; step < 3; ++step) {
          replica.comm->barrier();
          if (step == 2 && replica.rank == 0) {
            count->begin_noting();
          }
          replica.comm->barrier();
          loss().backward();
          replica.comm->barrier();
          if (step == 2 && replica.rank == 0) {
            noted = count->end_noting(kLeast);
          }
          replica.comm->barrier();
          model.zero_grad();
        }
      };
      step_of([&] { return toy_loss_of(*plain, 0, 0); }, *plain, plain_sizes);
      step_of([&] { return toy_loss(ddp, 0, 0); }, *ddp.module(), sizes);
    });
  }
  EXPECT_FALSE(plain_sizes.empty());
  EXPECT_EQ(sizes, plain_sizes);
}

}  // namespace
}  // namespace fsdp::testing
