// Member functions other than forward as what is called of a unit.

#include <gtest/gtest.h>

#include "tests/unit/fsdp_runtime/engine/chain_model.h"
#include "tests/unit/fsdp_runtime/engine/sharded_model.h"

namespace fsdp::testing {
namespace {

struct Coder : torch::nn::Module {
  at::Tensor encode(const at::Tensor& x) { return at::linear(x, weight); }
  at::Tensor decode(const at::Tensor& x, double scale) const {
    return at::linear(x, weight.t()) * scale;
  }
  at::Tensor forward(const at::Tensor& x) { return decode(encode(x), 1.0); }
  at::Tensor weight = register_parameter("weight", at::arange(12, at::kFloat).view({3, 4}) * 0.1);
};

TEST(EntryPointTest, IsTreatedLikeForward) {
  run_ranks(2, [](Rank& rank) {
    Unit<Coder> model(std::make_shared<Coder>());
    Coder plain;
    const FSDPModule root = fully_shard(model.ptr(), {.mesh = rank.mesh});
    root.set_reshard_after_forward(true);
    const at::Tensor x = at::ones({2, 4});
    for (int step = 0; step < 2; ++step) {
      rank.comm->clear();
      const at::Tensor hidden = model.call_method(&Coder::encode, x);
      EXPECT_THROW(model->weight.detach().sum(), c10::Error);
      EXPECT_TRUE(at::equal(hidden, plain.encode(x)));
      const at::Tensor result = model.call_method(&Coder::decode, hidden, 0.5);
      EXPECT_TRUE(at::equal(result, plain.decode(plain.encode(x), 0.5)));
      result.sum().backward();
      EXPECT_EQ(count(rank, "all_gather"), 4);  // each is a forward of the root, and has a backward
      EXPECT_EQ(count(rank, "reduce_scatter"), 1);
    }
    plain.zero_grad();
    plain.decode(plain.encode(x), 0.5).sum().backward();
    expect_gradients(rank, root, {{"weight", plain.weight.grad() * 2}});
  });
}

TEST(EntryPointTest, IsAPlainCallOfWhatIsNotSharded) {
  Unit<Coder> model(std::make_shared<Coder>());
  const at::Tensor x = at::ones({2, 4});
  EXPECT_TRUE(at::equal(model.call_method(&Coder::decode, model->encode(x), 2.0),
                        model->decode(model->encode(x), 2.0)));
}

}  // namespace
}  // namespace fsdp::testing
