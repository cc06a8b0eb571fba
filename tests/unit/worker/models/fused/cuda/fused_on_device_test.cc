// On a GPU: the kernels of fused operations beside ATen's in float64 on the CPU.

#include <ATen/ATen.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "worker/models/fused/cross_entropy_chunks.h"
#include "worker/models/fused/cuda/device_kernels.h"
#include "worker/models/fused/ops.h"
#include "worker/models/rope.h"

namespace fsdprun::worker {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

double DifferenceOf(const at::Tensor& ours, const at::Tensor& exact) {
  const at::Tensor difference = (ours.detach().to(at::kCPU, at::kDouble) - exact.detach()).abs();
  return (difference.max() / exact.detach().abs().max().clamp_min(1e-3)).item<double>();
}

class FusedOnDeviceTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override {
    at::manual_seed(5);
    ASSERT_TRUE(fused::HasDeviceKernels(at::ones({1}, at::device(at::kCUDA).dtype(GetParam()))));
  }

  /// Results and gradients of the same inputs, of which those in floating point have gradients.
  void ExpectSame(const Operation& fused, const Operation& exact, const Tensors& inputs) const {
    const double tolerance = GetParam() == at::kBFloat16 ? 4 * std::ldexp(1.0, -9) : 1e-5;
    Tensors ours, theirs;
    for (const at::Tensor& input : inputs) {
      const bool is_floating = input.is_floating_point();
      const at::Tensor rounded = is_floating ? input.to(GetParam()) : input;
      ours.push_back(rounded.to(at::kCUDA).requires_grad_(is_floating));
      theirs.push_back(
          (is_floating ? rounded.to(at::kDouble) : rounded.clone()).requires_grad_(is_floating));
    }
    const at::Tensor result = fused(ours), expected = exact(theirs);
    EXPECT_LE(DifferenceOf(result, expected), tolerance);
    const at::Tensor gradient = at::randn(expected.sizes()).to(result.scalar_type());
    result.backward(gradient.to(at::kCUDA));
    expected.backward(gradient.to(at::kDouble));
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (inputs[i].is_floating_point()) {
        EXPECT_LE(DifferenceOf(ours[i].grad(), theirs[i].grad()), tolerance) << "gradient " << i;
      }
    }
  }
};

// Of ATen's, in each of the shapes that models have: hidden states, and heads.
TEST_P(FusedOnDeviceTest, RmsNorm) {
  for (const int64_t n : {128, 4096}) {
    ExpectSame([](const Tensors& in) { return fused::RmsNorm(in[0], in[1], 1e-5); },
               [](const Tensors& in) {
                 return in[1] * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5));
               },
               {at::randn({2, 500, n}), at::randn({n})});
  }
}

TEST_P(FusedOnDeviceTest, Rope) {
  DecoderConfig config;
  for (const int64_t dim : {10, 64, 128}) {
    config.head_dim = dim;
    const auto tables = RopeTables(config, 70, at::kCPU);
    const at::Tensor cos = tables.first.to(GetParam()), sin = tables.second.to(GetParam());
    ExpectSame(
        [&](const Tensors& in) { return fused::Rope(in[0], cos.to(at::kCUDA), sin.to(at::kCUDA)); },
        [&](const Tensors& in) {
          return ApplyRope(in[0].transpose(1, 2), cos.to(at::kDouble), sin.to(at::kDouble))
              .transpose(1, 2);
        },
        {at::randn({3, 70, 5, dim})});
  }
}

TEST_P(FusedOnDeviceTest, Swiglu) {
  for (const int64_t n : {1, 33, 1 << 20}) {
    ExpectSame([](const Tensors& in) { return fused::Swiglu(in[0], in[1]); },
               [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
               {at::randn({n}) * 3, at::randn({n})});
  }
}

TEST_P(FusedOnDeviceTest, LinearCrossEntropy) {
  for (const int64_t words : {37, 1000, 32064}) {
    const at::Tensor targets = at::randint(words, {2, 70}, at::kLong);
    targets.view({-1}).slice(0, 0, 140, 3).fill_(fused::kIgnored);
    ExpectSame([](const Tensors& in) { return fused::LinearCrossEntropy(in[0], in[1], in[2]); },
               [words](const Tensors& in) {
                 return at::cross_entropy_loss(at::linear(in[0], in[1]).view({-1, words}),
                                               in[2].view({-1}));
               },
               {at::randn({2, 70, 64}), at::randn({words, 64}) * 0.1, targets});
  }
}

/// Hidden states, a head and targets, of which some do not count.
Tensors LossInputs(int64_t words) {
  const at::Tensor targets = at::randint(words, {140}, at::kLong);
  targets.slice(0, 0, 140, 3).fill_(fused::kIgnored);
  return {at::randn({140, 64}), at::randn({words, 64}) * 0.1, targets};
}

at::Tensor ExactLoss(const Tensors& in) {
  return at::cross_entropy_loss(at::linear(in[0], in[1]), in[2]);
}

TEST_P(FusedOnDeviceTest, LinearCrossEntropyOfSeveralChunks) {
  ExpectSame(
      [](const Tensors& in) {
        return fused::LinearCrossEntropy(in[0], in[1], in[2], fused::CrossEntropyChunks{32});
      },
      ExactLoss, LossInputs(1000));
}

TEST_P(FusedOnDeviceTest, LinearCrossEntropyOfBlocksWithAllTheirThreads) {
  ExpectSame([](const Tensors& in) { return fused::LinearCrossEntropy(in[0], in[1], in[2]); },
             ExactLoss, LossInputs(128256));
}

TEST_P(FusedOnDeviceTest, LinearCrossEntropyOfAFrozenHead) {
  ExpectSame(
      [](const Tensors& in) {
        return fused::LinearCrossEntropy(in[0], in[1].detach(), in[2]) + 0 * in[1].sum();
      },
      [](const Tensors& in) {
        return ExactLoss({in[0], in[1].detach(), in[2]}) + 0 * in[1].sum();
      },
      LossInputs(1000));
}

/// In bits, twice in the same way.
TEST_P(FusedOnDeviceTest, ResultsHaveTheSameBitsEachTime) {
  const auto gradients = [dtype = GetParam()] {
    at::manual_seed(6);
    const Tensors inputs = LossInputs(32064);
    const at::Tensor hidden = inputs[0].to(at::kCUDA, dtype).requires_grad_();
    const at::Tensor weight = inputs[1].to(at::kCUDA, dtype).requires_grad_();
    fused::LinearCrossEntropy(fused::Swiglu(hidden, hidden), weight, inputs[2].to(at::kCUDA))
        .backward();
    return Tensors{hidden.grad(), weight.grad()};
  };
  const Tensors first = gradients(), second = gradients();
  EXPECT_TRUE(first[0].equal(second[0]));
  EXPECT_TRUE(first[1].equal(second[1]));
}

TEST_P(FusedOnDeviceTest, KernelsAreBehindWhatIsOnTheCurrentStream) {
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  const c10::Device device(c10::DeviceType::CUDA, 0);
  const at::Tensor zeros = at::zeros({1 << 22}, at::device(device).dtype(GetParam()));
  const at::Tensor big = at::randn({4096, 4096}, at::device(device));
  fused::Swiglu(zeros, zeros);  // compiles, for which the stream below would not wait
  cuda.synchronizeDevice(0);
  const c10::StreamGuard guard(cuda.getStreamFromGlobalPool(device));
  at::Tensor product = big;
  for (int i = 0; i < 20; ++i) {  // time in which a kernel of another stream would be ahead
    product = at::mm(product, big);
  }
  const at::Tensor ones = zeros + (product * 0).nan_to_num(0, 0, 0).sum().to(GetParam()) + 1;
  const at::Tensor y = fused::Swiglu(ones, ones);
  EXPECT_LE(DifferenceOf(y, at::silu(at::ones({1 << 22}, at::kDouble))), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Dtypes, FusedOnDeviceTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace fsdprun::worker
