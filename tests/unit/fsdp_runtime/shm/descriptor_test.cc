#include "fsdp_runtime/shm/descriptor.h"

#include <gtest/gtest.h>

namespace fsdp::shm {
namespace {

Descriptor gather(const std::string& purpose) {
  return {.kind = Kind::kAllGather, .numel = 48, .purpose = purpose_of(purpose)};
}

TEST(DescriptorTest, DescriptionNamesThePurposeIfThereIsOne) {
  EXPECT_EQ(describe(gather("unit block1"), 0, 3),
            "all_gather #3 for unit block1 on lane 0 (48 x byte)");
  EXPECT_EQ(describe(gather(""), 1, 4), "all_gather #4 on lane 1 (48 x byte)");
  Descriptor through_window = gather("unit block1");
  through_window.kind = Kind::kWindowGather;
  through_window.root = 2;
  EXPECT_EQ(describe(through_window, 2, 3),
            "all_gather #3 for unit block1 of window 2 (48 x byte)");
}

TEST(DescriptorTest, OfALongPurposeTheEndIsKept) {
  const std::string longest(63, 'x');
  EXPECT_STREQ(purpose_of(longest).text.data(), longest.c_str());
  EXPECT_STREQ(purpose_of("first" + std::string(50, '.') + "layers.17").text.data() + 63 - 9,
               "layers.17");
}

TEST(DescriptorTest, LongPurposesThatDifferAtTheBeginningAreDifferent) {
  const std::string same_end(63, 'x');
  EXPECT_EQ(purpose_of("a" + same_end).text, purpose_of("b" + same_end).text);
  EXPECT_FALSE(is_same_operation(gather("a" + same_end), gather("b" + same_end)));
}

TEST(DescriptorTest, PurposeIsPartOfTheOperationAndPlaceIsNot) {
  Descriptor elsewhere = gather("unit block1");
  elsewhere.arena_offset = 4096;
  EXPECT_TRUE(is_same_operation(gather("unit block1"), elsewhere));
  EXPECT_FALSE(is_same_operation(gather("unit block1"), gather("unit block2")));
}

TEST(DescriptorTest, RanksOutOfStepAreListedByWhatTheyIssued) {
  const Descriptor a = gather("unit a");
  const Descriptor b = gather("unit b");
  const Descriptor end{.kind = Kind::kBarrier, .purpose = purpose_of("the end of a backward")};
  const std::string text = describe_out_of_step({a, b, a, end, a}, 0, 7);
  EXPECT_EQ(text.substr(0, text.find(';')),
            "ranks 0, 2 and 4 issued all_gather #7 for unit a on lane 0 (48 x byte), but rank 1 "
            "issued all_gather #7 for unit b on lane 0 (48 x byte), but rank 3 issued barrier #7 "
            "for the end of a backward on lane 0 (0 x byte)");
}

TEST(DescriptorTest, RanksOutOfStepAreCalledByTheirNames) {
  const std::string text = describe_out_of_step({gather("unit a"), gather("unit b")}, 0, 7, {4, 6});
  EXPECT_NE(text.find("rank 4 issued all_gather #7 for unit a"), std::string::npos) << text;
  EXPECT_NE(text.find("but rank 6 issued all_gather #7 for unit b"), std::string::npos) << text;
}

}  // namespace
}  // namespace fsdp::shm
