#include "formats/tensors/weight_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace fsdprun {
namespace {

using checkpoint::DcpMetadata;
using checkpoint::PathPart;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Pair;

/// Tensors at these places.
DcpMetadata At(const std::vector<std::vector<std::string>>& paths) {
  DcpMetadata metadata;
  for (const std::vector<std::string>& path : paths) {
    std::string key;
    for (const std::string& part : path) {
      key += (key.empty() ? "" : ".") + part;
    }
    metadata.tensors[key] = {};
    metadata.paths[key] = std::vector<PathPart>(path.begin(), path.end());
  }
  return metadata;
}

TEST(WeightKeysTest, UnderModelInTheNestedStateDict) {
  EXPECT_THAT(
      WeightKeys(At({{"model", "model.norm"}, {"model", "lm_head"}, {"optim", "lr"}})),
      ElementsAre(Pair("lm_head", "model.lm_head"), Pair("model.norm", "model.model.norm")));
  EXPECT_THAT(WeightKeys(At({{"app", "model", "a"}, {"app", "optim", "state", "a"}})),
              ElementsAre(Pair("a", "app.model.a")));
  EXPECT_THAT(WeightKeys(At({{"ema", "model", "a"}, {"model", "a"}})),
              ElementsAre(Pair("a", "model.a")));
}

TEST(WeightKeysTest, AStateDictAloneHasItsOwnNames) {
  EXPECT_THAT(WeightKeys(At({{"model.norm"}, {"lm_head"}})),
              ElementsAre(Pair("lm_head", "lm_head"), Pair("model.norm", "model.norm")));
  // Without a head, too.
  EXPECT_THAT(WeightKeys(At({{"model.norm"}})), ElementsAre(Pair("model.norm", "model.norm")));
  EXPECT_THAT(WeightKeys(At({{"norm.weight"}, {"optimizer", "model", "a"}, {"dataloader", "a"}})),
              ElementsAre(Pair("norm.weight", "norm.weight")));
  EXPECT_THAT(WeightKeys(At({{"a", "model", "w"}, {"b", "model", "w"}})),
              ElementsAre(Pair("a.model.w", "a.model.w"), Pair("b.model.w", "b.model.w")));
}

TEST(WeightKeysTest, WithoutPathsByTheKeys) {
  const auto keys = [](const std::vector<std::string>& names) {
    DcpMetadata metadata;
    for (const std::string& name : names) {
      metadata.tensors[name] = {};
    }
    return WeightKeys(metadata);
  };
  EXPECT_THAT(keys({"model.model.norm", "model.lm_head.weight", "optim.a"}),
              ElementsAre(Pair("lm_head.weight", "model.lm_head.weight"),
                          Pair("model.norm", "model.model.norm")));
  EXPECT_THAT(
      keys({"model.norm", "lm_head.weight"}),
      ElementsAre(Pair("lm_head.weight", "lm_head.weight"), Pair("model.norm", "model.norm")));
  EXPECT_THAT(keys({"model.norm"}), ElementsAre(Pair("model.norm", "model.norm")));
  EXPECT_THAT(keys({}), IsEmpty());
}

}  // namespace
}  // namespace fsdprun
