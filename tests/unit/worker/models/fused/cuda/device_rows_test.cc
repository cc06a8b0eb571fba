// The CUDA kernels of fused operations, and what launches them, in an emulation on the CPU, beside
// ATen's operations in double precision.

#include "worker/models/fused/cuda/device_rows.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "tests/unit/worker/models/fused/cuda/emulated_kernels.h"
#include "worker/models/fused/ops.h"

namespace fsdprun::worker {
namespace {

class EmulatedLauncher : public fused::KernelLauncher {
 public:
  explicit EmulatedLauncher(const emulation::Schedule& schedule = {}) : schedule_(schedule) {}

  void Launch(const at::Tensor& /*on*/, const fused::KernelCall& call) const override {
    kernels.push_back(call.kernel);
    assertion = RunEmulated(call.source->name, call.kernel, call.shape, call.arguments, schedule_);
  }
  int MultiprocessorsOf(const at::Tensor& /*on*/) const override { return 2; }

  mutable std::vector<std::string> kernels;  // that were launched
  mutable std::string assertion;             // of the last one

 private:
  const emulation::Schedule schedule_;
};

using Results = std::vector<at::Tensor>;
using Operation = std::function<Results(const fused::KernelLauncher&)>;

/// What the operation gives; the same bits in whatever order threads go on from where they meet,
/// and with any warp as far ahead, or behind, as barriers allow.
Results ResultsOf(const Operation& operation) {
  using Kind = emulation::Schedule::Kind;
  const EmulatedLauncher usual;
  const Results results = operation(usual);
  for (const emulation::Schedule& schedule : {emulation::Schedule{Kind::kTurns, 1},
                                              {Kind::kAhead, 0},
                                              {Kind::kAhead, 1},
                                              {Kind::kAhead, 7}}) {
    const EmulatedLauncher launcher(schedule);
    const Results others = operation(launcher);
    for (size_t i = 0; i < results.size(); ++i) {
      EXPECT_TRUE(results[i].equal(others[i]))
          << "result " << i << " depends on the schedule: kind " << static_cast<int>(schedule.kind)
          << ", order " << schedule.order;
    }
  }
  return results;
}

/// Near what was computed in float64: rounded once to bfloat16, or a few times in float32.
void ExpectClose(const at::Tensor& ours, const at::Tensor& exact) {
  ASSERT_EQ(ours.sizes(), exact.sizes());
  const double unit = std::ldexp(1.0, ours.scalar_type() == at::kBFloat16 ? -8 : -22);
  const at::Tensor allowed = exact.abs() * unit + 2e-6 * exact.abs().max().clamp_min(1.0);
  const at::Tensor difference = (ours.to(at::kDouble) - exact).abs();
  EXPECT_TRUE(difference.le(allowed).all().item<bool>())
      << "by up to " << difference.max().item<double>();
}

at::Tensor Exact(const at::Tensor& tensor) {
  return tensor.to(at::kDouble).detach().clone().requires_grad_();
}

at::Tensor Random(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes).to(dtype);
}

/// As `tensor`, but not where 16 bytes begin.
at::Tensor Misaligned(const at::Tensor& tensor) {
  at::Tensor storage = at::empty({tensor.numel() + 1}, tensor.options());
  return storage.slice(0, 1).view(tensor.sizes()).copy_(tensor);
}

class DeviceRowsTest : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(3); }
  at::ScalarType dtype() const { return GetParam(); }
};

/// cos and sin of some angles, [1, length, dim] with equal halves.
at::Tensor TableOf(at::Tensor (*function)(const at::Tensor&), int64_t length, int64_t dim,
                   at::ScalarType dtype) {
  const at::Tensor angles = at::arange(length * dim / 2).view({1, length, dim / 2}) * 0.1;
  return at::cat({function(angles), function(angles)}, 2).to(dtype);
}

/// x: [batch, length, heads, dim].
void ExpectRope(const at::Tensor& x) {
  const int64_t half = x.size(3) / 2;
  const at::Tensor cos = TableOf(at::cos, x.size(1), x.size(3), x.scalar_type());
  const at::Tensor sin = TableOf(at::sin, x.size(1), x.size(3), x.scalar_type());
  ASSERT_TRUE(fused::FitsRopeOnDevice(x, cos, sin));
  for (const float sign : {1.0F, -1.0F}) {
    const at::Tensor a = x.to(at::kDouble);
    const at::Tensor turned = at::cat({-a.slice(3, half), a.slice(3, 0, half)}, 3);
    const at::Tensor exact = a * cos.to(at::kDouble).unsqueeze(2) +
                             double{sign} * turned * sin.to(at::kDouble).unsqueeze(2);
    const Results results = ResultsOf([&](const fused::KernelLauncher& device) -> Results {
      return {fused::RopeOnDevice(device, x, cos, sin, sign)};
    });
    EXPECT_TRUE(results[0].is_contiguous());
    ExpectClose(results[0], exact);
  }
}

TEST_P(DeviceRowsTest, Rope) {
  for (const int64_t dim : {2, 6, 30, 64, 128}) {
    SCOPED_TRACE(dim);
    ExpectRope(Random({2, 5, 3, dim}, dtype()));
  }
  ExpectRope(Random({1, 2, 33, 128}, dtype()));                      // more than a block's threads
  ExpectRope(Random({2, 3, 5, 64}, dtype()).transpose(1, 2));        // as attention leaves it
  ExpectRope(Random({2, 5, 9, 64}, dtype()).slice(2, 3, 6));         // of one matrix of all three
  ExpectRope(Random({2, 5, 3, 67}, dtype()).slice(3, 1, 65));        // heads that are not aligned
  ExpectRope(Random({2, 64, 3, 5}, dtype()).permute({0, 3, 2, 1}));  // no neighbours
  ExpectRope(Random({1, 1, 1, 1}, dtype()).expand({2, 3, 4, 64}));   // the gradient of a sum
}

TEST(FitsRopeOnDeviceTest, WhatDoesNotFitIsLeftToATen) {
  const at::Tensor x = at::ones({2, 5, 3, 8}), table = at::ones({1, 5, 8});
  EXPECT_TRUE(fused::FitsRopeOnDevice(x, table, table));
  EXPECT_FALSE(fused::FitsRopeOnDevice(x, table.expand({2, 5, 8}), table));
  EXPECT_FALSE(fused::FitsRopeOnDevice(x, at::ones({1, 4, 8}), at::ones({1, 4, 8})));
  EXPECT_FALSE(fused::FitsRopeOnDevice(x, table, at::ones({1, 5, 1})));
  EXPECT_FALSE(fused::FitsRopeOnDevice(x, table.to(at::kBFloat16), table));
  EXPECT_FALSE(
      fused::FitsRopeOnDevice(at::ones({2, 5, 3, 7}), at::ones({1, 5, 7}), at::ones({1, 5, 7})));
}

void ExpectSwiglu(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& dy) {
  const at::Tensor exact_gate = Exact(gate), exact_up = Exact(up);
  const at::Tensor exact = at::silu(exact_gate) * exact_up;
  exact.backward(dy.to(at::kDouble));
  const Results results = ResultsOf([&](const fused::KernelLauncher& device) -> Results {
    const at::Tensor dgate = at::empty_like(gate), dup = at::empty_like(up);
    fused::SwigluBackwardOnDevice(device, dy, gate, up, dgate, dup);
    return {fused::SwigluOnDevice(device, gate, up), dgate, dup};
  });
  ExpectClose(results[0], exact.detach());
  ExpectClose(results[1], exact_gate.grad());
  ExpectClose(results[2], exact_up.grad());
}

TEST_P(DeviceRowsTest, Swiglu) {
  for (const int64_t n : {1, 31, 33, 1000, 4097, 70001}) {  // the last in several turns
    SCOPED_TRACE(n);
    ExpectSwiglu(Random({n}, dtype()) * 3, Random({n}, dtype()), Random({n}, dtype()));
  }
  ExpectSwiglu(Misaligned(Random({100}, dtype())), Random({100}, dtype()), Random({100}, dtype()));
  const at::Tensor extremes =
      at::tensor({-1e30F, -200.0F, -90.0F, 0.0F, 90.0F, 200.0F, 1e30F}).to(dtype());
  ExpectSwiglu(extremes, at::ones_like(extremes), at::ones_like(extremes));
}

TEST_P(DeviceRowsTest, WhatIsNotANumberStaysSo) {
  const at::Tensor x = at::ones({1, 40}).to(dtype());
  x.select(1, 17).fill_(std::numeric_limits<float>::quiet_NaN());
  const EmulatedLauncher device;
  EXPECT_TRUE(fused::SwigluOnDevice(device, x, x).select(1, 17).isnan().all().item<bool>());
  const at::Tensor losses =
      fused::CrossEntropyOnDevice(device, x, at::zeros({1}, at::kLong), at::ones({}));
  EXPECT_TRUE(losses.isnan().all().item<bool>());
}

/// targets: int64 [rows], of which some count.
void ExpectCrossEntropy(const at::Tensor& logits, const at::Tensor& targets) {
  const at::Tensor counts = targets.ne(fused::kIgnored), count = counts.sum().to(at::kFloat);
  const at::Tensor exact_logits = Exact(logits);
  const at::Tensor index = targets.masked_fill(~counts, 0).unsqueeze(1);
  const at::Tensor exact =
      -at::log_softmax(exact_logits, 1).gather(1, index).squeeze(1).masked_fill(~counts, 0.0);
  (exact.sum() / count.to(at::kDouble)).backward();
  const Results results = ResultsOf([&](const fused::KernelLauncher& device) -> Results {
    const at::Tensor changed = logits.clone();
    const at::Tensor losses = fused::CrossEntropyOnDevice(device, changed, targets, count);
    return {losses, changed};
  });
  EXPECT_EQ(results[0].scalar_type(), at::kFloat);
  ExpectClose(results[0], exact.detach());
  ExpectClose(results[1], exact_logits.grad());
}

TEST_P(DeviceRowsTest, CrossEntropy) {
  for (const int64_t rows : {1, 3}) {
    for (const int64_t n : {1, 31, 33, 1000, 4097, 16384}) {
      SCOPED_TRACE(testing::Message() << rows << " x " << n);
      const at::Tensor targets = at::randint(n, {rows}, at::kLong);
      targets.slice(0, 1, rows, 2).fill_(fused::kIgnored);
      ExpectCrossEntropy(Random({rows, n}, dtype()) * 5, targets);
    }
  }
}

TEST_P(DeviceRowsTest, CrossEntropyOfLogitsThatExpHasNoRoomFor) {
  const at::Tensor targets = at::zeros({2}, at::kLong);
  ExpectCrossEntropy(Random({2, 100}, dtype()) * 1000 + 3e4, targets);
  // Words that cannot be, as padding of a vocabulary: whole packs, and whole threads, of them.
  const at::Tensor logits = Random({2, 20000}, dtype());
  logits.slice(1, 1, 9000).fill_(-std::numeric_limits<float>::infinity());
  ExpectCrossEntropy(logits, targets);
}

TEST_P(DeviceRowsTest, TargetBeyondTheVocabularyIsAnAssertion) {
  for (const int64_t target : {3, -1, -101}) {
    const EmulatedLauncher device;
    fused::CrossEntropyOnDevice(device, at::ones({1, 3}).to(dtype()), at::full({1}, target),
                                at::ones({}));
    EXPECT_EQ(device.assertion, "0 <= target && target < vocab_size") << target;
  }
}

TEST_P(DeviceRowsTest, NumbersAreReadInPacksWhereTheyCanBe) {
  const EmulatedLauncher device;
  const at::Tensor x = Random({16}, dtype());
  fused::SwigluOnDevice(device, x, x);
  fused::SwigluOnDevice(device, Misaligned(x), x);
  const std::string dtype_name = dtype() == at::kFloat ? "f32" : "bf16";
  EXPECT_EQ(device.kernels,
            (std::vector<std::string>{"swiglu_" + dtype_name + "_wide", "swiglu_" + dtype_name}));
}

using Attempt = std::function<void(const fused::KernelLauncher&)>;

/// Nothing is launched, and the error has the text.
void ExpectRefused(const Attempt& attempt, const std::string& text) {
  const EmulatedLauncher device;
  try {
    attempt(device);
    ADD_FAILURE() << "was not refused: " << text;
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find(text), std::string::npos) << error.what();
  }
  EXPECT_TRUE(device.kernels.empty());
}

TEST(DeviceRowsChecksTest, TensorsOnOtherDevicesAreRefusedBeforeALaunch) {
  const at::Tensor x = at::ones({2, 5, 3, 8}), table = at::ones({1, 5, 8});
  const auto elsewhere = [](const at::Tensor& tensor) { return tensor.to(at::kMeta); };
  const std::string text =
      "of model.kernels=fused: expected all tensors on one device, got cpu and";
  ExpectRefused([&](const auto& on) { fused::RopeOnDevice(on, x, table, elsewhere(table), 1.0F); },
                "Rope " + text);
  ExpectRefused([&](const auto& on) { fused::SwigluOnDevice(on, x, elsewhere(x)); },
                "Swiglu " + text);
  ExpectRefused(
      [&](const auto& on) { fused::SwigluBackwardOnDevice(on, x, x, elsewhere(x), x, x); },
      "Swiglu " + text);
  const at::Tensor targets = at::zeros({5}, at::kLong), count = at::ones({});
  ExpectRefused(
      [&](const auto& on) {
        fused::CrossEntropyOnDevice(on, at::ones({5, 8}), elsewhere(targets), count);
      },
      "LinearCrossEntropy " + text);
}

TEST(DeviceRowsChecksTest, TensorsOfOtherLengthsAreRefusedBeforeALaunch) {
  const at::Tensor x = at::ones({16}), shorter = at::ones({12});
  ExpectRefused([&](const auto& on) { fused::SwigluOnDevice(on, x, shorter); },
                "expected as many numbers as the gate's 16, got 12");
  ExpectRefused([&](const auto& on) { fused::SwigluBackwardOnDevice(on, x, shorter, x, x, x); },
                "expected as many numbers as the gradient's 16, got 12");
  ExpectRefused(
      [&](const auto& on) {
        fused::CrossEntropyOnDevice(on, at::ones({5, 8}), at::zeros({4}, at::kLong), at::ones({}));
      },
      "expected 5 targets, one of each token, got 4");
}

TEST(DeviceKernelsTest, NoneAreForTheCpu) {
  EXPECT_FALSE(fused::HasDeviceKernels(at::ones({4})));
  EXPECT_FALSE(fused::HasDeviceKernels(at::ones({4}).to(at::kBFloat16)));
}

INSTANTIATE_TEST_SUITE_P(Dtypes, DeviceRowsTest, ::testing::Values(at::kFloat, at::kBFloat16),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace fsdprun::worker
