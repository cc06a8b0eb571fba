// What OffloadActivations copies, and in which order, on a fake device, which stands for one that
// has memory of its own.

#include <ATen/ATen.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "fsdp_runtime/src/activation/saved_on_cpu.h"
#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

using ::testing::HasSubstr;

/// Of the fake device. It sees only when an operation has ended that it has written its result,
/// which autograd saves before.
bool is_on_the_host(const at::Tensor& tensor) {
  FakeDevice& device = FakeDevice::get();
  const auto* begin = static_cast<const char*>(tensor.storage().data());
  device.mark_written(begin, begin + tensor.storage().nbytes());
  return device.is_on_host(begin);
}

/// As OffloadActivations, of which this is all.
detail::SavedTensorScope offload(const OffloadActivations::Options& options) {
  return detail::SavedTensorScope(
      [options] { return detail::saved_on_cpu(options, is_on_the_host); });
}

/// Of which autograd saves results and arguments, some of them views that are not contiguous.
struct Chain {
  at::Tensor leaf = at::arange(24, at::kFloat).div_(10).view({4, 6}).set_requires_grad(true);
  at::Tensor hidden = leaf.sin();
  at::Tensor loss = hidden.exp().mul(hidden.t().contiguous().t()).matmul(hidden.t()).sum();
};

at::Tensor gradient_of(const OffloadActivations::Options& options) {
  Chain chain = [&] {
    const auto scope = offload(options);
    return Chain();
  }();
  chain.loss.backward();
  return chain.leaf.grad().clone();
}

class OffloadActivationsTest : public OnAFakeDevice {
 protected:
  static c10::impl::VirtualGuardImpl impl() {
    return c10::impl::VirtualGuardImpl(FakeDevice::device().type());
  }
};

TEST_F(OffloadActivationsTest, WhatComesBackHasTheSameBits) {
  Chain plain;
  plain.loss.backward();
  for (const bool pin_memory : {true, false}) {
    const int copies = device_.count("copy_");
    const int waits = device_.host_waits();
    const at::Tensor gradient = gradient_of({.min_bytes = 0, .pin_memory = pin_memory});
    EXPECT_GE(device_.count("copy_"), copies + 2 * 4) << "there and back";
    EXPECT_EQ(device_.host_waits(), waits);
    EXPECT_TRUE(at::equal(gradient, plain.leaf.grad()));
  }
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(OffloadActivationsTest, SmallOnesStay) {
  constexpr int64_t kBytes = 4 * 6 * 4;
  const auto copies_of = [this](int64_t min_bytes) {
    const int before = device_.count("copy_");
    gradient_of({.min_bytes = min_bytes});
    return device_.count("copy_") - before;
  };
  const int others = copies_of(kBytes + 1);  // contiguous()
  EXPECT_GT(copies_of(kBytes), others);
  EXPECT_EQ(copies_of(int64_t{1} << 40), others);
}

using WeakMemory = c10::weak_intrusive_ptr<c10::StorageImpl>;

WeakMemory memory_of_what_is_saved(bool is_offloaded, at::Tensor& loss) {
  const auto scope = offload({.min_bytes = is_offloaded ? 0 : int64_t{1} << 40});
  const at::Tensor leaf = at::ones({64}).set_requires_grad(true);
  const at::Tensor hidden = leaf.exp();
  loss = hidden.sin().sum();
  return WeakMemory(
      c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(hidden.storage().unsafeGetStorageImpl()));
}

TEST_F(OffloadActivationsTest, MemoryOfTheDeviceIsGivenBackInForward) {
  at::Tensor loss;
  EXPECT_FALSE(memory_of_what_is_saved(false, loss).expired());
  EXPECT_TRUE(memory_of_what_is_saved(true, loss).expired());
  loss.backward();
}

/// Forward on a stream, backward on the default one.
void run_on_two_streams(const c10::impl::VirtualGuardImpl& impl, bool waits) {
  FakeDevice& device = FakeDevice::get();
  const c10::Stream forward = impl.getStreamFromGlobalPool(FakeDevice::device());
  at::Tensor loss;
  {
    const c10::StreamGuard guard(forward);
    device.set_phase("forward");
    const auto scope = offload({.min_bytes = 0});
    loss = at::ones({64}).set_requires_grad(true).exp().sin().sum();
  }
  if (waits) {
    c10::Event event(FakeDevice::device().type());
    event.record(forward);
    event.block(impl.getStream(FakeDevice::device()));
  }
  device.set_phase("backward");
  const auto back_on = [&] {
    loss.backward();
    c10::Event event(FakeDevice::device().type());
    event.record(impl.getStream(FakeDevice::device()));
    event.block(forward);  // whose memory it is
  };
  back_on();
}

TEST_F(OffloadActivationsTest, CopiesAreOrderedByTheStreamsThatAreCurrent) {
  run_on_two_streams(impl(), /*waits=*/true);
  EXPECT_EQ(device_.text_of_races(), "");
}

TEST_F(OffloadActivationsTest, WithoutAWaitThatIsARace) {
  run_on_two_streams(impl(), /*waits=*/false);
  EXPECT_THAT(device_.text_of_races(),
              HasSubstr("copy_ of compute in backward is not ordered behind copy_ on a gather lane "
                        "in forward"));
}

std::map<std::string, at::Tensor> gradients_of_units(bool offloads) {
  FakeDevice& device = FakeDevice::get();
  Sharded setup = sharded_for({.name = "units", .config = {.blocks = 3}});
  const auto scaled = [&] {
    const auto scope = offload({.min_bytes = offloads ? 0 : int64_t{1} << 40});
    device.set_phase("forward");
    return loss(setup.model, 0, 0);
  }();
  const int waits = device.host_waits();
  device.set_phase("backward");
  scaled.backward();
  EXPECT_EQ(device.host_waits(), waits);
  std::map<std::string, at::Tensor> gradients;
  for (const LocalShard& shard : setup.root.sharded_gradients()) {
    if (shard.local.defined()) {
      gradients[shard.fqn] = shard.local.clone();
    }
  }
  return gradients;
}

TEST_F(OffloadActivationsTest, UnitsHaveTheirGradients) {
  const auto expected = gradients_of_units(false);
  const int others = device_.count("copy_");
  const auto found = gradients_of_units(true);
  EXPECT_GT(device_.count("copy_"), 2 * others);
  EXPECT_EQ(device_.text_of_races(), "");
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [fqn, gradient] : expected) {
    EXPECT_TRUE(at::equal(found.at(fqn), gradient)) << fqn;
  }
}

// Views of parameters are among what is saved.
TEST_F(OffloadActivationsTest, ParametersAreCopiedWhenTheyHaveBeenGathered) {
  device_.leave_out_waits([](const FakeDevice::Wait& wait) { return wait.waiting == kCompute; });
  gradients_of_units(true);
  EXPECT_THAT(device_.text_of_races(), HasSubstr("copy_ of compute in forward is not ordered "
                                                 "behind copy_ on a gather lane in forward"));
}

}  // namespace
}  // namespace fsdp::testing
