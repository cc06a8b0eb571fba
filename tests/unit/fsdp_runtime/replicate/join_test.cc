#include <torch/optim/sgd.h>

#include "tests/unit/fsdp_runtime/replicate/replicas.h"

namespace fsdp::testing {
namespace {

/// A layer and a count of its forwards.
struct Counted : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) {
    at::NoGradGuard no_grad;
    count.add_(1);
    at::AutoGradMode grad(true);
    return at::linear(at::linear(x, first), second);
  }
  at::Tensor first = register_parameter("first", Branches::values(1));
  at::Tensor second = register_parameter("second", Branches::values(2));
  at::Tensor count = register_buffer("count", at::zeros({}, at::kLong));
};

at::Tensor uneven_input(int64_t rank, int64_t step) {
  return at::ones({1, 4}) * static_cast<double>(1 + rank + 2 * step);
}

/// Rank r has r + 1 inputs.
void train_unevenly(const DistributedDataParallel<Counted>& ddp, int64_t rank) {
  torch::optim::SGD optimizer(ddp->parameters(), 0.125);
  for (int64_t step = 0; step <= rank; ++step) {
    optimizer.zero_grad();
    ddp(uneven_input(rank, step)).sum().backward();
    optimizer.step();
  }
}

/// The same by one process.
std::shared_ptr<Counted> trained_unevenly(int64_t ranks, bool divides_by_all) {
  const auto model = std::make_shared<Counted>();
  torch::optim::SGD optimizer(model->parameters(), 0.125);
  for (int64_t step = 0; step < ranks; ++step) {
    const int64_t divisor = divides_by_all ? ranks : ranks - step;
    std::vector<at::Tensor> sums = {at::zeros({4, 4}), at::zeros({4, 4})};
    for (int64_t rank = step; rank < ranks; ++rank) {
      optimizer.zero_grad();
      model->forward(uneven_input(rank, step)).sum().backward();
      for (size_t i = 0; i < 2; ++i) {
        sums[i] += model->parameters()[i].grad() * (1.0 / static_cast<double>(divisor));
      }
    }
    for (size_t i = 0; i < 2; ++i) {
      model->parameters()[i].mutable_grad() = sums[i];
    }
    optimizer.step();
  }
  return model;
}

class JoinTest : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(JoinTest, UnevenInputsTrainAsOneProcessAndAllEndAlike) {
  const auto [backend, divides_by_all] = GetParam();
  run_replicas(backend, 3, [divides_by_all = divides_by_all](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Counted>(), replica.options());
    const JoinOptions options{.divide_by_initial_world_size = divides_by_all};
    ddp.join([&] { train_unevenly(ddp, replica.rank); }, options);
    const auto expected = trained_unevenly(3, divides_by_all);
    EXPECT_TRUE(at::equal(ddp->first, expected->first));
    EXPECT_TRUE(at::equal(ddp->second, expected->second));
    EXPECT_EQ(ddp->count.item<int64_t>(), 3) << "of the rank with most inputs";
    ddp->zero_grad();  // and then as without join()
    ddp(uneven_input(replica.rank, 0)).sum().backward();
    EXPECT_TRUE(ddp->first.grad().defined());
  });
}

INSTANTIATE_TEST_SUITE_P(Backends, JoinTest,
                         ::testing::Combine(::testing::Values("local", "gloo"), ::testing::Bool()),
                         [](const auto& info) {
                           return std::get<0>(info.param) +
                                  (std::get<1>(info.param) ? "AllRanks" : "ThoseLeft");
                         });

TEST(JoinErrorTest, EarlyTerminationThrowsOnAllRanks) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Counted>(), replica.options());
    try {
      ddp.join([&] { train_unevenly(ddp, replica.rank); }, {.throw_on_early_termination = true});
      ADD_FAILURE() << "rank " << replica.rank << " went on";
    } catch (const c10::Error& error) {
      const std::string text = error.what_without_backtrace();
      EXPECT_NE(text.find("run out of inputs"), std::string::npos) << text;
    }
  });
}

TEST(JoinErrorTest, ADirectCallAndANestedJoinAreRefused) {
  run_replicas("local", 2, [](Replica& replica) {
    DistributedDataParallel ddp(std::make_shared<Counted>(), replica.options());
    EXPECT_THROW(ddp.join(nullptr), c10::Error);
    EXPECT_THROW(ddp.join([&] { ddp->forward(uneven_input(0, 0)).sum().backward(); }), c10::Error);
    EXPECT_THROW(ddp.join([&] { ddp.join([] {}); }), c10::Error);
    ddp->zero_grad();
    ddp(uneven_input(0, 0)).sum().backward();  // nothing is left of it
    ddp.join([&] { train_unevenly(ddp, 0); }, {.enable = false});
  });
}

TEST(JoinGraphTest, OfUnusedParametersAndAStaticGraph) {
  for (const bool is_static : {false, true}) {
    run_replicas("local", 2, [is_static](Replica& replica) {
      DistributedDataParallelOptions options = replica.options();
      options.find_unused_parameters = !is_static;
      options.static_graph = is_static;
      DistributedDataParallel ddp(std::make_shared<Branches>(), options);
      for (int epoch = 0; epoch < 2; ++epoch) {  // rank 0 has no input in the first
        ddp.join([&] {
          for (int64_t step = 0; step < replica.rank + epoch; ++step) {
            ddp->zero_grad();
            ddp(uneven_input(replica.rank, step)).sum().backward();
            expect_gradients(*ddp.module(),
                             mean_gradients<Branches>(
                                 2, [] { return std::make_shared<Branches>(); },
                                 [&](Branches& model, int64_t rank) {
                                   if (step < rank + epoch) {
                                     model.forward(uneven_input(rank, step)).sum().backward();
                                   }
                                 }));
          }
        });
      }
    });
  }
}

}  // namespace
}  // namespace fsdp::testing
