// What a sharded module cannot do is an error that names the parameter, and nothing is broken by
// it.

#include <gtest/gtest.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/serialize.h>

#include <functional>
#include <memory>
#include <sstream>
#include <string>

#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

/// Two linear layers, each a unit, in a root that is one, too.
struct Pair {
  explicit Pair(Rank& rank) {
    for (size_t i = 0; i < 2; ++i) {
      fully_shard((*model)[i], {rank.mesh, {}, {}});
    }
    root = fully_shard(model.ptr(), {rank.mesh, {}, {}});
  }

  at::Tensor run(const at::Tensor& x) {
    return call(
        *model, [this](const at::Tensor& in) { return second(first(in)); }, x);
  }

  torch::nn::Sequential model{torch::nn::Linear(4, 3), torch::nn::Linear(3, 2)};
  Unit<torch::nn::LinearImpl> first{std::dynamic_pointer_cast<torch::nn::LinearImpl>((*model)[0])};
  Unit<torch::nn::LinearImpl> second{std::dynamic_pointer_cast<torch::nn::LinearImpl>((*model)[1])};
  FSDPModule root;
};

/// `misuse` is refused with the name of a parameter of the second layer, and training goes on as if
/// it had not been tried.
void expect_refused(const std::function<void(Pair&)>& misuse) {
  run_ranks(2, [&misuse](Rank& rank) {
    Pair pair(rank);
    const at::Tensor x = at::ones({2, 4});
    const at::Tensor expected = pair.run(x);
    expected.sum().backward();
    const at::Tensor gradient = pair.root.sharded_gradients()[2].local.clone();
    const std::string said = refusal([&] { misuse(pair); });
    EXPECT_EQ(said.find("fsdp: parameter 1."), 0U) << said;
    EXPECT_NE(said.find(" is sharded now"), std::string::npos) << said;
    EXPECT_NE(said.find("fsdp::Unit"), std::string::npos) << said;
    AdamW(pair.root, {}).zero_grad();
    const at::Tensor found = pair.run(x);
    EXPECT_TRUE(at::equal(found, expected));
    found.sum().backward();
    EXPECT_TRUE(at::equal(pair.root.sharded_gradients()[2].local, gradient));
  });
}

TEST(MisuseTest, ForwardThatIsCalledDirectly) {
  expect_refused([](Pair& pair) { pair.second->forward(at::ones({2, 3})); });
}

TEST(MisuseTest, ReadingAParameter) {
  expect_refused([](Pair& pair) { pair.second->weight.norm(); });
}

TEST(MisuseTest, WritingAParameter) {
  expect_refused([](Pair& pair) {
    const at::NoGradGuard no_grad;
    pair.second->weight.fill_(1.0);
  });
}

TEST(MisuseTest, PrintingAParameter) {
  expect_refused([](Pair& pair) {
    std::ostringstream text;
    text << pair.second->weight;
  });
}

TEST(MisuseTest, CastingTheModule) {
  expect_refused([](Pair& pair) { pair.second->to(at::kDouble); });
}

TEST(MisuseTest, CloningTheModule) {
  expect_refused([](Pair& pair) { pair.second->clone(); });
}

TEST(MisuseTest, SavingTheModule) {
  expect_refused([](Pair& pair) {
    std::ostringstream stream;
    torch::save(pair.second.ptr(), stream);
  });
}

TEST(MisuseTest, MovingTheModuleWhereItIsAlreadyDoesNothing) {
  run_ranks(2, [](Rank& rank) {
    Pair pair(rank);
    pair.model->to(at::kCPU);
    pair.model->to(at::kFloat);
    pair.run(at::ones({2, 4})).sum().backward();
    EXPECT_TRUE(pair.root.sharded_gradients()[0].local.defined());
  });
}

}  // namespace
}  // namespace fsdp::testing
