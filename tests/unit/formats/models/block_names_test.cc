#include "formats/models/block_names.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(BlockNamesTest, TheFirstPartThatIsANumberIsTheBlock) {
  EXPECT_EQ(BlockOf("model.layers.0.self_attn.q_proj.weight"), 0);
  EXPECT_EQ(BlockOf("transformer.h.11.mlp.c_fc.bias"), 11);
  EXPECT_EQ(BlockOf("layers.3.experts.7.weight"), 3);
  EXPECT_EQ(BlockOf("4"), 4);
}

TEST(BlockNamesTest, OtherNamesAreInNone) {
  for (const char* name : {"", ".", "model.norm.weight", "lm_head.weight", "h2.weight", "2h.weight",
                           "-1.weight", "a..b", "99999999999999999999.weight"}) {
    EXPECT_EQ(BlockOf(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace fsdprun
