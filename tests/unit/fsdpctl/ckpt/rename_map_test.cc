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

using Path = std::vector<checkpoint::PathPart>;

TEST(PathAfterRenameTest, AnUnchangedKeyKeepsItsPlace) {
  const Path path = {"optim", "param_groups", int64_t{0}, "lr"};
  EXPECT_EQ(PathAfterRename("optim.param_groups.0.lr", path, "optim.param_groups.0.lr"), path);
  EXPECT_EQ(PathAfterRename("key", {"anything"}, "key"), Path({"anything"}));
}

TEST(PathAfterRenameTest, CommonPartsAtBothEndsStay) {
  const Path group = {"optim", "param_groups", int64_t{0}, "lr"};
  EXPECT_EQ(PathAfterRename("optim.param_groups.0.lr", group, "optimizer.param_groups.0.lr"),
            Path({"optimizer", "param_groups", int64_t{0}, "lr"}));
  EXPECT_EQ(PathAfterRename("optim.param_groups.0.lr", group, "param_groups.0.lr"),
            Path({"param_groups", int64_t{0}, "lr"}));
  const Path moment = {"optim", "state", "a.w", "step"};
  EXPECT_EQ(PathAfterRename("optim.state.a.w.step", moment, "optim.state.b.c.w.step"),
            Path({"optim", "state", "b.c.w", "step"}));
  EXPECT_EQ(PathAfterRename("a.w", {"a.w"}, "model.a.w"), Path({"model", "a.w"}));
}

TEST(PathAfterRenameTest, WithNothingInCommonItIsAtTheTop) {
  EXPECT_EQ(PathAfterRename("model.a.w", {"model", "a.w"}, "layers.0.w"), Path({"layers.0.w"}));
  EXPECT_EQ(PathAfterRename("a", {"not", "the", "key"}, "b.c"), Path({"b.c"}));
}

}  // namespace
}  // namespace fsdprun::ckpt
