#include <dlfcn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/worker/tokenizers/small_model.h"
#include "worker/tokenizers/tokenizer.h"

namespace fsdprun::worker {
namespace {

// Note [Two libraries with one name]
TEST(SentencePieceBesideTorchTest, VariablesOfLibTorchStayAsTheyAre) {
  const auto* level = static_cast<const int*>(dlsym(RTLD_DEFAULT, "FLAGS_minloglevel"));
  ASSERT_NE(level, nullptr) << "LibTorch has no such variable any more";
  const int before = *level;
  const auto tokenizer = MakeSentencePieceTokenizer(SmallModel(), "m.model");
  std::vector<uint32_t> ids;
  tokenizer->Encode("a ab", Tokenizer::SpecialTokens::kOmitted, ids);
  EXPECT_EQ(ids.size(), 3U);
  EXPECT_EQ(*level, before);
}

}  // namespace
}  // namespace fsdprun::worker
