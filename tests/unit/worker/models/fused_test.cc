// Fused operations beside the chains of ATen's operations that they stand for.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/worker/models/family_documents.h"
#include "worker/models/fused/cross_entropy_chunks.h"
#include "worker/models/fused/ops.h"
#include "worker/models/rope.h"

namespace fsdprun::worker {
namespace {

using Tensors = std::vector<at::Tensor>;
using Operation = std::function<at::Tensor(const Tensors&)>;

/// The largest difference, over the largest number.
double Difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max().clamp_min(1e-30)).item<double>();
}

/// Results and gradients of the two for the same inputs and the same gradient of the result.
void ExpectSame(const Operation& fused, const Operation& reference, const Tensors& inputs,
                double tolerance = 2e-6) {
  at::manual_seed(7);
  Tensors ours, theirs;
  for (const at::Tensor& input : inputs) {
    ours.push_back(input.clone().requires_grad_(input.is_floating_point()));
    theirs.push_back(input.clone().requires_grad_(input.is_floating_point()));
  }
  const at::Tensor result = fused(ours), expected = reference(theirs);
  ASSERT_EQ(result.sizes(), expected.sizes());
  EXPECT_LE(Difference(result.detach(), expected.detach()), tolerance);
  const at::Tensor gradient = at::randn(expected.sizes());
  result.backward(gradient);
  expected.backward(gradient);
  for (size_t i = 0; i < inputs.size(); ++i) {
    ASSERT_EQ(ours[i].grad().defined(), theirs[i].grad().defined()) << i;
    if (theirs[i].grad().defined()) {
      EXPECT_LE(Difference(ours[i].grad(), theirs[i].grad()), tolerance) << "gradient " << i;
    }
  }
}

at::Tensor ReferenceNorm(const Tensors& in) {
  return in[1] * (in[0] * at::rsqrt(in[0].pow(2).mean(-1, true) + 1e-5));
}

TEST(FusedTest, RmsNorm) {
  at::manual_seed(1);
  const Operation fused = [](const Tensors& in) { return fused::RmsNorm(in[0], in[1], 1e-5); };
  // Widths that are no multiples of a register's; rows that are dealt over threads.
  for (const auto& [rows, width] : {std::pair{1, 3}, {3, 7}, {5, 40}, {700, 129}}) {
    ExpectSame(fused, ReferenceNorm, {at::randn({2, rows, width}), at::randn({width})}, 1e-5);
  }
  const Operation of_columns = [](const Tensors& in) {
    return fused::RmsNorm(in[0].transpose(0, 1), in[1], 1e-5);
  };
  ExpectSame(
      of_columns,
      [](const Tensors& in) {
        return ReferenceNorm({in[0].t(), in[1]});
      },
      {at::randn({6, 4}), at::randn({6})}, 1e-5);
}

TEST(FusedTest, Rope) {
  at::manual_seed(1);
  DecoderConfig config;
  config.head_dim = 10;
  const auto [cos, sin] = RopeTables(config, 6, at::kCPU);
  const at::Tensor cosines = cos, sines = sin;
  ExpectSame([&](const Tensors& in) { return fused::Rope(in[0], cosines, sines); },
             [&](const Tensors& in) {
               return ApplyRope(in[0].transpose(1, 2), cosines, sines).transpose(1, 2);
             },
             {at::randn({3, 6, 2, 10})});
}

TEST(FusedTest, Swiglu) {
  at::manual_seed(1);
  const Operation fused = [](const Tensors& in) { return fused::Swiglu(in[0], in[1]); };
  const Operation reference = [](const Tensors& in) { return at::silu(in[0]) * in[1]; };
  ExpectSame(fused, reference, {at::randn({4, 9, 33}) * 3, at::randn({4, 9, 33})});
  const at::Tensor extremes = at::tensor({-1e30F, -200.0F, -90.0F, 0.0F, 90.0F, 200.0F, 1e30F});
  ExpectSame(fused, reference, {extremes, at::ones({7})});
  const float not_a_number = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(
      fused::Swiglu(at::full({20}, not_a_number), at::ones({20})).isnan().all().item<bool>());
}

at::Tensor ReferenceLoss(const Tensors& in) { return CausalLoss(at::linear(in[0], in[1]), in[2]); }

constexpr int64_t kWords = 37;

/// Hidden rows, a head, and targets of which each third does not count.
Tensors LossInputs() {
  at::manual_seed(1);
  at::Tensor targets = at::randint(kWords, {2, 9}, at::kLong);
  targets.view({-1}).slice(0, 0, 18, 3).fill_(fused::kIgnored);
  return {at::randn({2, 9, 16}), at::randn({kWords, 16}), targets};
}

Operation LossInChunks(const fused::CrossEntropyChunks& chunks) {
  return [chunks](const Tensors& in) {
    return fused::LinearCrossEntropy(in[0], in[1], in[2], chunks);
  };
}

TEST(FusedTest, LinearCrossEntropy) {
  const Tensors some = LossInputs();
  const Operation fused = [](const Tensors& in) {
    return fused::LinearCrossEntropy(in[0], in[1], in[2]);
  };
  ExpectSame(fused, ReferenceLoss, some, 5e-6);
  ExpectSame(fused, ReferenceLoss, {some[0], some[1], some[2].clamp_min(0)}, 5e-6);
}

TEST(FusedTest, LinearCrossEntropyInAnyChunksAndWithoutLoopsOfItsOwn) {
  for (const bool has_row_kernels : {true, false}) {
    for (const int64_t rows : {1, 7, 18, 100}) {
      SCOPED_TRACE(rows);
      ExpectSame(LossInChunks({rows, has_row_kernels}), ReferenceLoss, LossInputs(), 5e-6);
    }
  }
}

TEST(FusedTest, ChunksAreLargeEnoughForTheWeightThatEachReads) {
  EXPECT_EQ(fused::ChunksFor(1024, /*is_on_cpu=*/true).rows, 8192);
  EXPECT_EQ(fused::ChunksFor(128'256, /*is_on_cpu=*/true).rows, 256);
  EXPECT_EQ(fused::ChunksFor(1024, /*is_on_cpu=*/false).rows, 8192);
  EXPECT_EQ(fused::ChunksFor(128'256, /*is_on_cpu=*/false).rows, 2048);
}

TEST(FusedTest, WhereNoTargetCountsTheLossIsNotANumberAndGradientsAreZeros) {
  for (const bool has_row_kernels : {true, false}) {
    const at::Tensor hidden = at::ones({3, 4}).requires_grad_();
    const at::Tensor weight = at::ones({5, 4}).requires_grad_();
    const at::Tensor loss = fused::LinearCrossEntropy(
        hidden, weight, at::full({3}, fused::kIgnored), {2, has_row_kernels});
    EXPECT_TRUE(std::isnan(loss.item<float>()));
    loss.backward();
    EXPECT_TRUE(hidden.grad().eq(0).all().item<bool>());
    EXPECT_TRUE(weight.grad().eq(0).all().item<bool>());
  }
}

// Which is scaled in place where nobody can ask for it again.
TEST(FusedTest, GradientsOfAScaledLossAreScaledOnce) {
  const Tensors in = LossInputs();
  const at::Tensor hidden = in[0].clone().requires_grad_();
  const at::Tensor loss = 3 * fused::LinearCrossEntropy(hidden, in[1], in[2]);
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = hidden.grad().clone();
  hidden.mutable_grad().reset();
  loss.backward();
  EXPECT_TRUE(hidden.grad().equal(first));
  const at::Tensor plain = in[0].clone().requires_grad_();
  fused::LinearCrossEntropy(plain, in[1], in[2]).backward();
  EXPECT_LE(Difference(first, 3 * plain.grad()), 1e-6);
}

TEST(FusedTest, LossWithoutGradientsMakesNone) {
  const at::Tensor hidden = at::randn({4, 8}), weight = at::randn({5, 8}).requires_grad_();
  const at::Tensor targets = at::arange(4);
  {
    const at::NoGradGuard no_grad;
    EXPECT_FALSE(fused::LinearCrossEntropy(hidden, weight, targets).requires_grad());
  }
  fused::LinearCrossEntropy(hidden, weight, targets).backward();
  EXPECT_TRUE(weight.grad().defined());  // of a head whose inputs have none
}

TEST(FusedTest, TargetBeyondTheVocabularyIsRefused) {
  for (const bool has_row_kernels : {true, false}) {
    for (const int64_t target : {3, -1, -101}) {
      EXPECT_THROW(fused::LinearCrossEntropy(at::ones({1, 2}), at::ones({3, 2}),
                                             at::full({1}, target), {1, has_row_kernels}),
                   c10::Error)
          << target;
    }
  }
}

// Their gradients have no graph: what is differentiated again would lack terms.
TEST(FusedTest, ASecondDerivativeIsRefused) {
  const at::Tensor x = at::randn({1, 4, 2, 8}).requires_grad_();
  const at::Tensor table = at::ones({1, 4, 8}), w = at::ones({8});
  const std::vector<at::Tensor> results = {
      fused::RmsNorm(x, w, 1e-5).sum(), fused::Rope(x, table, table).sum(),
      fused::Swiglu(x, x).sum(),
      fused::LinearCrossEntropy(x, at::ones({3, 8}), at::ones({1, 4, 2}, at::kLong))};
  for (const at::Tensor& result : results) {
    try {
      result.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
      ADD_FAILURE() << "accepted";
    } catch (const c10::Error& error) {
      EXPECT_NE(std::string(error.what_without_backtrace()).find("use model.kernels=reference"),
                std::string::npos)
          << error.what_without_backtrace();
    }
  }
}

TEST(FusedTest, ModelsTrainAsTheReferenceDoes) {
  const at::Tensor tokens = at::arange(40).view({2, 20});
  const at::Tensor targets = tokens + 1;
  for (const char* family : kFamilies) {
    const auto reference = MakeInitialisedModel(DocumentOf(family));
    const auto fused = MakeInitialisedModel(DocumentOf(family), Kernels::kFused);
    const at::Tensor expected = reference->Loss(tokens, targets);
    const at::Tensor loss = fused->Loss(tokens, targets);
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(), 2e-6 * expected.item<double>());
    expected.backward();
    loss.backward();
    const auto gradients = reference->named_parameters();
    for (const auto& parameter : fused->named_parameters()) {
      EXPECT_LE(Difference(parameter.value().grad(), gradients[parameter.key()].grad()), 2e-5)
          << family << " " << parameter.key();
    }
  }
}

/// As ExpectSame(), of bfloat16 inputs beside the same numbers in float32.
void ExpectNearFloat32(const Operation& fused, const Operation& reference, const Tensors& inputs) {
  const auto as = [&inputs](at::ScalarType dtype) {
    Tensors cast;
    for (const at::Tensor& input : inputs) {
      cast.push_back(input.is_floating_point() ? input.to(at::kBFloat16).to(dtype).requires_grad_()
                                               : input);
    }
    return cast;
  };
  const Tensors ours = as(at::kBFloat16), theirs = as(at::kFloat);
  const at::Tensor result = fused(ours), expected = reference(theirs);
  // One rounding to 8 bits is half a unit, 2^-9 of the number; the reference's chains have several.
  const double tolerance = 4 * std::ldexp(1.0, -9);
  EXPECT_LE(Difference(result.detach().to(at::kFloat), expected.detach()), tolerance);
  result.sum().backward();
  expected.sum().backward();
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].is_floating_point()) {
      EXPECT_EQ(ours[i].grad().scalar_type(), at::kBFloat16);
      EXPECT_LE(Difference(ours[i].grad().to(at::kFloat), theirs[i].grad()), tolerance) << i;
    }
  }
}

TEST(FusedTest, Bfloat16IsNearFloat32) {
  at::manual_seed(1);
  ExpectNearFloat32([](const Tensors& in) { return fused::RmsNorm(in[0], in[1], 1e-5); },
                    ReferenceNorm, {at::randn({3, 40}), at::randn({40})});
  ExpectNearFloat32([](const Tensors& in) { return fused::Swiglu(in[0], in[1]); },
                    [](const Tensors& in) { return at::silu(in[0]) * in[1]; },
                    {at::randn({4, 33}), at::randn({4, 33})});
  DecoderConfig config;
  config.head_dim = 10;
  const auto [cos, sin] = RopeTables(config, 6, at::kCPU);
  const at::Tensor cosines = cos.to(at::kBFloat16), sines = sin.to(at::kBFloat16);
  ExpectNearFloat32([&](const Tensors& in) { return fused::Rope(in[0], cosines, sines); },
                    [&](const Tensors& in) {
                      return ApplyRope(in[0].transpose(1, 2), cosines.to(at::kFloat),
                                       sines.to(at::kFloat))
                          .transpose(1, 2);
                    },
                    {at::randn({3, 6, 2, 10})});
  for (const bool has_row_kernels : {true, false}) {
    for (const int64_t rows : {5, 100}) {
      ExpectNearFloat32(LossInChunks({rows, has_row_kernels}), ReferenceLoss, LossInputs());
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
