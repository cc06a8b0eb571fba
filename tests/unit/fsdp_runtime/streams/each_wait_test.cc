// No wait between streams is there for nothing: without any one of them, a training on a fake
// device has a race.

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "tests/unit/fsdp_runtime/streams/on_a_fake_device.h"
#include "tests/unit/fsdp_runtime/streams/training_case.h"

namespace fsdp::testing {
namespace {

/// The all-reduce over the copies is behind the reduction in the row, which is behind compute.
/// Offloaded gradients and their norm are the host's, and so is the wait for what full_parameter()
/// copies to the device.
bool is_implied(const Case& test_case, const FakeDevice::Wait& wait) {
  return (wait.waiting == kCopiesReduce && wait.awaited == kCompute && wait.phase == "backward") ||
         (is_offloaded(test_case) && (wait.phase == "clipping" || wait.phase == "the end"));
}

const std::set<std::string>& names_of_all_waits() {
  static const std::set<std::string> kNames = {"default",
                                               "bfloat16_sums",
                                               "reduced_microbatches",
                                               "checkpoint_inside",
                                               "hook",
                                               "custom_comm",
                                               "uses_differ",
                                               "rows",
                                               "evaluation_in_full_precision",
                                               "steps_in_backward",
                                               "hybrid_bfloat16_sums",
                                               "hybrid_sums_of_rows",
                                               "hybrid_uses_differ",
                                               "offload_bfloat16",
                                               "offload_reduced_microbatches"};
  return kNames;
}

/// Cases that have all kinds of waits.
std::vector<Case> cases_of_all_waits() {
  std::vector<Case> all = training_cases();
  std::erase_if(
      all, [](const Case& test_case) { return !names_of_all_waits().contains(test_case.name); });
  return all;
}

TEST(EachWaitCasesTest, AreThereByAllTheirNames) {
  EXPECT_EQ(cases_of_all_waits().size(), names_of_all_waits().size());
}

class EachWaitTest : public OnAFakeDevice, public ::testing::WithParamInterface<Case> {};

TEST_P(EachWaitTest, ThatPutsSomethingInOrderIsNeeded) {
  train(GetParam(), 2);
  const std::set<FakeDevice::Wait> waits = device_.waits();
  ASSERT_FALSE(waits.empty());
  for (const FakeDevice::Wait& each : waits) {
    if (is_implied(GetParam(), each)) {
      continue;
    }
    device_.stop();
    device_.start();
    device_.leave_out_waits(
        [&each](const FakeDevice::Wait& wait) { return !(wait < each) && !(each < wait); });
    train(GetParam(), 2);
    EXPECT_FALSE(device_.races().empty()) << "without the waits of stream " << each.waiting
                                          << " for stream " << each.awaited << " in " << each.phase;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, EachWaitTest, ::testing::ValuesIn(cases_of_all_waits()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace fsdp::testing
