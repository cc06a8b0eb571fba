// The path of a GPU, LibTorch's fused kernel, against that of the CPU: both run on the CPU here.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

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

  AdamWList list(const at::Tensor& gradient, bool decays) const {
    AdamWList list(param.scalar_type(), decays);
    const int64_t cut = 40000;
    const auto add = [&](int64_t begin, int64_t numel, const at::Tensor& counter) {
      list.add({param.narrow(0, begin, numel), gradient.narrow(0, begin, numel),
                exp_avg.narrow(0, begin, numel), exp_avg_sq.narrow(0, begin, numel), counter});
    };
    add(0, cut, steps[0]);
    add(cut, param.numel() - cut, steps[1]);
    return list;
  }
  void count() const { at::_foreach_add_(steps, 1); }

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
  for (const bool decays : {true, false}) {
    const at::Tensor params = at::randn({numel});
    const State in_pieces(params);
    const State fused(params);
    AdamWOptions rate = options();
    const at::Tensor lr = at::full({}, rate.lr, at::kFloat);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor gradient = at::randn({numel});
      in_pieces.count();
      in_pieces.list(gradient, decays).apply_in_pieces(rate);
      fused.count();
      fused.list(gradient, decays).apply_fused(rate, lr);
      expect_close(fused.param, in_pieces.param);
      expect_close(fused.exp_avg, in_pieces.exp_avg);
      expect_close(fused.exp_avg_sq, in_pieces.exp_avg_sq);
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
  AdamWList list(at::kFloat, true);
  list.add({param, gradient, zeros(), zeros(), steps, copy});
  list.apply_in_pieces(options());
  EXPECT_TRUE(at::equal(copy, param.to(at::kBFloat16)));
  AdamWList plain(at::kFloat, true);
  plain.add({without, gradient, zeros(), zeros(), steps, {}});
  plain.apply_in_pieces(options());
  EXPECT_TRUE(at::equal(param, without));
}

TEST(AdamWListTest, IsForOneDtypeAndKindOfDecay) {
  const AdamWList list(at::kFloat, true);
  EXPECT_TRUE(list.holds(at::kFloat, true));
  EXPECT_FALSE(list.holds(at::kFloat, false));
  EXPECT_FALSE(list.holds(at::kBFloat16, true));
}

}  // namespace
}  // namespace fsdp
