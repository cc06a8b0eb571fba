// The path of a GPU, LibTorch's fused kernel, against that of the CPU: both run on the CPU here.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/optim/adamw_kernel.h"

namespace fsdp {
namespace {

AdamWOptions options() {
  AdamWOptions options;
  options.lr = 1e-2;
  options.weight_decay = 0.1;
  return options;
}

/// Two parts, larger than a piece and smaller, that have done different numbers of steps.
struct State {
  explicit State(const at::Tensor& params)
      : param(params.clone()),
        exp_avg(at::zeros_like(param)),
        exp_avg_sq(at::zeros_like(param)),
        steps{at::zeros({}, at::kFloat), at::full({}, 100, at::kFloat)} {}

  AdamWList list(const at::Tensor& gradient) const {
    AdamWList list(param.scalar_type(), 0);
    const int64_t cut = 40000;
    const auto add = [&](int64_t begin, int64_t numel, const at::Tensor& counter) {
      list.add({param.narrow(0, begin, numel), gradient.narrow(0, begin, numel),
                exp_avg.narrow(0, begin, numel), exp_avg_sq.narrow(0, begin, numel), counter});
    };
    add(0, cut, steps[0]);
    add(cut, param.numel() - cut, steps[1]);
    return list;
  }

  at::Tensor param;
  at::Tensor exp_avg;
  at::Tensor exp_avg_sq;
  std::vector<at::Tensor> steps;
};

void expect_close(const at::Tensor& actual, const at::Tensor& expected) {
  EXPECT_TRUE(at::allclose(actual, expected, /*rtol=*/1e-5, /*atol=*/1e-7))
      << (actual - expected).abs().max();
}

TEST(AdamWListTest, FusedKernelUpdatesAsThePiecesDo) {
  at::NoGradGuard no_grad;
  at::manual_seed(1);
  const int64_t numel = 45000;
  for (const double weight_decay : {0.1, 0.0}) {
    const at::Tensor params = at::randn({numel});
    const State in_pieces(params);
    const State fused(params);
    const State in_one_pass(params);
    AdamWOptions rate = options();
    rate.weight_decay = weight_decay;
    const at::Tensor lr = at::full({}, rate.lr, at::kFloat);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor gradient = at::randn({numel});
      at::_foreach_add_(in_pieces.steps, 1);
      in_pieces.list(gradient).apply_in_pieces(rate);
      const FusedScaling scaling(GradScaling{});
      scaling.count(fused.steps);
      fused.list(gradient).apply_fused(rate, lr, scaling);
      expect_close(fused.param, in_pieces.param);
      expect_close(fused.exp_avg, in_pieces.exp_avg);
      expect_close(fused.exp_avg_sq, in_pieces.exp_avg_sq);
      at::_foreach_add_(in_one_pass.steps, 1);
      in_one_pass.list(gradient).apply_in_one_pass(rate);
      expect_close(in_one_pass.param, in_pieces.param);
      expect_close(in_one_pass.exp_avg, in_pieces.exp_avg);
      expect_close(in_one_pass.exp_avg_sq, in_pieces.exp_avg_sq);
      rate.lr *= 0.5;  // both read it anew
      lr.fill_(rate.lr);
    }
    EXPECT_FALSE(at::equal(fused.param, params));
  }
}

TEST(AdamWListTest, WritesCopiesInTheirDtype) {
  at::NoGradGuard no_grad;
  at::manual_seed(2);
  const int64_t numel = 70000;  // some pieces and a rest
  const auto zeros = [&] { return at::zeros({numel}); };
  const at::Tensor param = at::randn({numel});
  const at::Tensor without = param.clone();
  const at::Tensor gradient = at::randn({numel});
  const at::Tensor copy = at::zeros({numel}, at::kBFloat16);
  const at::Tensor steps = at::ones({}, at::kLong);
  AdamWList list(at::kFloat, 0);
  list.add({param, gradient, zeros(), zeros(), steps, copy});
  list.apply_in_pieces(options());
  EXPECT_TRUE(at::equal(copy, param.to(at::kBFloat16)));
  AdamWList plain(at::kFloat, 0);
  plain.add({without, gradient, zeros(), zeros(), steps, {}});
  plain.apply_in_pieces(options());
  EXPECT_TRUE(at::equal(param, without));
  list.apply_in_one_pass(options());
  EXPECT_FALSE(at::equal(param, without));
  EXPECT_TRUE(at::equal(copy, param.to(at::kBFloat16)));
}

at::Tensor scalar(double value) { return at::full({}, value, at::kFloat); }

TEST(AdamWListTest, UnscalesTheGradientsBeforeItUsesThem) {
  at::NoGradGuard no_grad;
  at::manual_seed(3);
  const at::Tensor params = at::randn({45000});
  const at::Tensor gradient = at::randn({45000});
  const State plain(params);
  const State in_pieces(params);
  const State fused(params);
  for (const State* state : {&plain, &in_pieces, &fused}) {
    at::_foreach_add_(state->steps, 1);
  }
  plain.list(gradient).apply_in_pieces(options());
  const at::Tensor scaled = gradient * 1024;
  in_pieces.list(scaled).apply_in_pieces(options(), {.divisor = 1024});
  EXPECT_TRUE(at::equal(scaled, gradient));
  EXPECT_TRUE(at::equal(in_pieces.param, plain.param));
  EXPECT_TRUE(at::equal(in_pieces.exp_avg_sq, plain.exp_avg_sq));
  scaled.mul_(1024);
  fused.list(scaled).apply_fused(options(), scalar(options().lr),
                                 FusedScaling({.grad_scale = scalar(1024)}));
  EXPECT_TRUE(at::equal(scaled, gradient));
  expect_close(fused.param, plain.param);
  for (const GradientFactor& scaling : {GradientFactor{.divisor = 1024}, {.factor = 1.0 / 1024}}) {
    const State in_one_pass(params);
    at::_foreach_add_(in_one_pass.steps, 1);
    scaled.mul_(1024);
    in_one_pass.list(scaled).apply_in_one_pass(options(), scaling);
    EXPECT_TRUE(at::equal(scaled, gradient));
    expect_close(in_one_pass.param, plain.param);
  }
}

// 2: of a scaler that adds the answers of two devices.
TEST(AdamWListTest, FusedKernelStopsAndCountsNothingForAnyFoundInf) {
  at::NoGradGuard no_grad;
  at::manual_seed(4);
  for (const auto& [found, sizes] : std::vector<std::pair<double, std::vector<int64_t>>>{
           {0, {}}, {1, {}}, {2, {}}, {std::nan(""), {}}, {0, {1}}, {1, {1}}}) {
    const at::Tensor params = at::randn({45000});
    const at::Tensor gradient = at::randn({45000});
    const at::Tensor scaled = gradient * 8;
    const State state(params);
    const FusedScaling scaling(
        {.grad_scale = scalar(8).reshape(sizes), .found_inf = scalar(found).reshape(sizes)});
    scaling.count(state.steps);
    state.list(scaled).apply_fused(options(), scalar(options().lr), scaling);
    const bool stops = found != 0;
    EXPECT_EQ(at::equal(state.param, params), stops) << found;
    EXPECT_EQ(at::equal(state.exp_avg, at::zeros_like(params)), stops) << found;
    EXPECT_EQ(at::equal(scaled, gradient), !stops) << found;
    EXPECT_EQ(state.steps[0].item<float>(), stops ? 0 : 1) << found;
    EXPECT_EQ(state.steps[1].item<float>(), stops ? 100 : 101) << found;
  }
}

}  // namespace
}  // namespace fsdp
