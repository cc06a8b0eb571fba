#include "worker/models/decoder/grouped_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <gtest/gtest.h>

namespace fsdprun::worker {
namespace {

GroupedAttention SomeAttention(bool has_mask) {
  GroupedAttention attention{at::randn({2, 4, 6, 8}), at::randn({2, 2, 6, 8}),
                             at::randn({2, 2, 6, 8}), std::nullopt, !has_mask};
  if (has_mask) {
    attention.mask = at::ones({6, 6}, at::kBool).tril();
  }
  return attention;
}

/// As on a device whose fast kernels do not take what is given.
class WithoutFlash {
 public:
  WithoutFlash() { at::globalContext().setSDPUseFlash(false); }
  ~WithoutFlash() { at::globalContext().setSDPUseFlash(true); }
  WithoutFlash(const WithoutFlash&) = delete;
  WithoutFlash& operator=(const WithoutFlash&) = delete;
};

TEST(GroupedAttentionTest, HeadsAreRepeatedWhereOnlyTheFallbackTakesGroups) {
  for (const bool has_mask : {false, true}) {
    const GroupedAttention attention = SomeAttention(has_mask);
    EXPECT_TRUE(HasGroupedKernel(attention)) << has_mask;
    const WithoutFlash without;
    EXPECT_FALSE(HasGroupedKernel(attention)) << has_mask;
  }
}

TEST(GroupedAttentionTest, IsTheSameEitherWay) {
  at::manual_seed(1);
  for (const bool has_mask : {false, true}) {
    const GroupedAttention attention = SomeAttention(has_mask);
    const at::Tensor expected = Attend(attention, /*repeats=*/true);
    EXPECT_TRUE(at::allclose(Attend(attention, /*repeats=*/false), expected, 1e-5, 1e-6));
    const WithoutFlash without;
    EXPECT_TRUE(at::allclose(Attend(attention, /*repeats=*/false), expected, 1e-5, 1e-6));
  }
}

}  // namespace
}  // namespace fsdprun::worker
