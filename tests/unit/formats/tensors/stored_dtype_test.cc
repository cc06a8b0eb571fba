#include "formats/tensors/stored_dtype.h"

#include <gtest/gtest.h>

#include "tests/unit/formats/tensors/memory_tensors.h"

namespace fsdprun {
namespace {

TEST(StoredDtypeTest, AllWeightsHaveIt) {
  MemoryTensors source;
  source.Add("a.weight", {2}, {1, 2}, "bfloat16");
  source.Add("b.weight", {1}, {3}, "bfloat16");
  EXPECT_TRUE(AreWeightsStoredIn(source, "bfloat16", {}));
  EXPECT_FALSE(AreWeightsStoredIn(source, "float32", {}));
  source.Add("c.weight", {1}, {4}, "float32");
  EXPECT_FALSE(AreWeightsStoredIn(source, "bfloat16", {}));
}

// Which the model computes itself.
TEST(StoredDtypeTest, BuffersDoNotCount) {
  MemoryTensors source;
  source.Add("a.weight", {2}, {1, 2}, "bfloat16");
  source.Add("a.rotary_emb.inv_freq", {1}, {3}, "float32");
  EXPECT_TRUE(AreWeightsStoredIn(source, "bfloat16", {".attn.bias", ".rotary_emb.inv_freq"}));
  EXPECT_FALSE(AreWeightsStoredIn(source, "bfloat16", {".attn.bias"}));
}

}  // namespace
}  // namespace fsdprun
