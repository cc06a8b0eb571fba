#include "fsdpctl/ckpt/rename_map.h"

#include <gtest/gtest.h>

#include <optional>

#include "formats/json/strict_json.h"

namespace fsdprun::ckpt {
namespace {

TEST(RenameMapTest, BadMapsAreRefused) {
  for (const char* text :
       {"", "[]", R"({"a": 1})", R"({"a*b*": "c"})", R"({"a": "*"})", R"({"a": "b", "a": "c"})"}) {
    EXPECT_THROW(RenameMap(text, "map.json"), ConfigError) << text;
  }
}

TEST(RenameMapTest, TheFirstRuleThatFitsCounts) {
  const RenameMap map(R"({"model.head": "output", "model.*.w": "*.weight", "model.*": "rest.*",
                          "optim.*": null})",
                      "map.json");
  EXPECT_EQ(map.Rename("model.head"), "output");
  EXPECT_EQ(map.Rename("model.a.b.w"), "a.b.weight");
  EXPECT_EQ(map.Rename("model.a"), "rest.a");
  EXPECT_EQ(map.Rename("model."), "rest.");
  EXPECT_EQ(map.Rename("optim.x"), std::nullopt);
  EXPECT_EQ(map.Rename("other"), "other");
}

TEST(RenameMapTest, HeadAndTailDoNotOverlap) {
  const RenameMap map(R"({"aba*aba": "x*"})", "map.json");
  EXPECT_EQ(map.Rename("ababa"), "ababa");
  EXPECT_EQ(map.Rename("abaaba"), "x");
}

}  // namespace
}  // namespace fsdprun::ckpt
