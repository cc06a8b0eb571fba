#include <latch>
#include <thread>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

/// Throws between the gradients of `second` and `first`, if it is told to.
struct Failing : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::linear(x, first);
    y.register_hook([this](const at::Tensor&) { TORCH_CHECK(!fails, "told to fail"); });
    return at::linear(y, second);
  }
  bool fails = false;
  at::Tensor first = register_parameter("first", Branches::values(1));
  at::Tensor second = register_parameter("second", Branches::values(2));
};

DistributedDataParallelOptions a_bucket_each(const Replica& replica) {
  DistributedDataParallelOptions options = replica.options();
  options.bucket_cap_mb = 1e-6;
  return options;
}

TEST(FailedBackwardTest, OnAllRanksDropsWhatItHasReducedAndTheNextOneWorks) {
  for (const bool sets_to_none : {true, false}) {
    run_replicas("local", 2, [sets_to_none](Replica& replica) {
      DistributedDataParallel ddp(std::make_shared<Failing>(), a_bucket_each(replica));
      const at::Tensor x = at::ones({2, 4}) * static_cast<double>(replica.rank + 1);
      for (const bool fails : {false, true, false, true, true, false}) {
        ddp->zero_grad(sets_to_none);
        ddp->fails = fails;
        if (fails) {
          EXPECT_THROW(ddp(x).sum().backward(), c10::Error);
          EXPECT_FALSE(ddp->second.grad().defined());
          continue;
        }
        ddp(x).sum().backward();
        expect_gradients(
            *ddp.module(),
            mean_gradients<Failing>(
                2, [] { return std::make_shared<Failing>(); },
                [](Failing& model, int64_t rank) {
                  model.forward(at::ones({2, 4}) * static_cast<double>(rank + 1)).sum().backward();
                }));
      }
    });
  }
}

/// Holds its backward where it is, and then throws, if it is told to.
struct Held : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = at::linear(x, first);
    if (holds) {
      y.register_hook([this](const at::Tensor&) {
        is_held.count_down();
        may_throw.wait();
        TORCH_CHECK(false, "told to fail");
      });
    }
    return at::linear(y, second);
  }
  bool holds = false;
  std::latch is_held{1}, may_throw{1};
  at::Tensor first = register_parameter("first", Branches::values(1));
  at::Tensor second = register_parameter("second", Branches::values(2));
};

// As on CUDA, where autograd's thread may let go of it behind the caller's next forward.
TEST(FailedBackwardTest, ThatAutogradStillHoldsDoesNotTouchTheNextOne) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Held>(), a_bucket_each(replica));
    const auto input_of = [](int64_t rank) {
      return at::ones({2, 4}) * static_cast<double>(rank + 1);
    };
    ddp->holds = true;
    const at::Tensor loss = ddp(input_of(replica.rank)).sum();
    std::thread failing([&loss] { EXPECT_THROW(loss.backward(), c10::Error); });
    ddp->is_held.wait();
    ddp->holds = false;
    const auto expected = mean_gradients<Held>(
        2, [] { return std::make_shared<Held>(); },
        [&](Held& model, int64_t rank) { model.forward(input_of(rank)).sum().backward(); });
    const at::Tensor next = ddp(input_of(replica.rank)).sum();
    EXPECT_FALSE(ddp->second.grad().defined());
    next.backward();
    expect_gradients(*ddp.module(), expected);
    ddp->may_throw.count_down();
    failing.join();
    expect_gradients(*ddp.module(), expected);
  });
}

class LostRankTest : public ::testing::TestWithParam<std::string> {};

TEST_P(LostRankTest, IsNamedByThoseWhoWaitForIt) {
  const std::vector<std::string> errors = errors_of_replicas(GetParam(), 3, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Failing>(), a_bucket_each(replica));
    ddp(at::ones({2, 4})).sum().backward();
    ddp->fails = replica.rank == 1;
    try {
      ddp(at::ones({2, 4})).sum().backward();
    } catch (const PeerError& error) {
      EXPECT_NE(replica.rank, 1);
      EXPECT_EQ(error.rank, 1) << error.what_without_backtrace();
      EXPECT_NE(error.operation.find("bucket"), std::string::npos) << error.operation;
      EXPECT_FALSE(ddp->second.grad().defined());
      throw;
    }
  });
  EXPECT_NE(errors[1].find("told to fail"), std::string::npos) << errors[1];
  EXPECT_NE(errors[0], "");
  EXPECT_NE(errors[2], "");
}

INSTANTIATE_TEST_SUITE_P(Backends, LostRankTest, ::testing::Values("local", "gloo"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace fsdp::testing
