// The keys of checkpoints that other programs wrote: where what State has is found in them.
#include "worker/checkpoint/key_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/worker/checkpoint/checkpoint_case.h"

namespace fsdprun::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::vector<std::string> kKeys = {"model.model.a.weight",
                                        "model.head.weight",
                                        "optim.state.model.a.weight.exp_avg",
                                        "optim.state.model.a.weight.step",
                                        "optim.state.head.weight.exp_avg",
                                        "optim.state.head.weight.step"};

/// With kKeys under other prefixes.
DcpMetadata StoredUnder(const std::string& model, const std::string& optimizer) {
  DcpMetadata metadata;
  for (const std::string& key : kKeys) {
    metadata.tensors[KeyLayout{model, optimizer}.Stored(key)];
  }
  return metadata;
}

TEST(KeyLayoutTest, PrefixesAreFoundWhateverTheProgramCallsThem) {
  for (const char* model : {"model.", "", "app.model.", "model._orig_mod.", "net.module."}) {
    for (const char* optimizer : {"optim.", "optimizer.", "app.optim.", ""}) {
      const KeyLayout layout = FindKeyLayout(StoredUnder(model, optimizer), kKeys, "it");
      EXPECT_EQ(layout.model, model);
      EXPECT_EQ(layout.optimizer, optimizer);
    }
  }
}

TEST(KeyLayoutTest, KeysOfAnotherModelAreNamedAsTheyWouldBeStored) {
  DcpMetadata metadata = StoredUnder("", "optimizer.");
  metadata.tensors.erase("head.weight");
  EXPECT_EQ(FindKeyLayout(metadata, kKeys, "it").Stored(kKeys[1]), "head.weight");
  EXPECT_EQ(FindKeyLayout({}, kKeys, "it").Stored(kKeys[1]), kKeys[1]);
  // Only the end of a part is the same.
  metadata.tensors.clear();
  metadata.tensors["my_model.a.weight"];
  EXPECT_EQ(FindKeyLayout(metadata, kKeys, "it").model, "model.");
}

TEST(KeyLayoutTest, WeightsThatAreThereTwiceAreRefusedUnlessOneOfThemHasTheUsualName) {
  DcpMetadata metadata = StoredUnder("net.", "optim.");
  metadata.tensors.merge(StoredUnder("ema.", "optim.").tensors);
  EXPECT_THAT(MessageOf<MismatchError>([&] { FindKeyLayout(metadata, kKeys, "it"); }),
              AllOf(HasSubstr("it has ema.model.a.weight and net.model.a.weight"),
                    HasSubstr("fsdpctl ckpt convert --map")));
  metadata.tensors.merge(StoredUnder("model.", "optim.").tensors);
  EXPECT_EQ(FindKeyLayout(metadata, kKeys, "it").model, "model.");
}

TEST(KeyLayoutTest, ParametersThatTheModelLacksAreFoundByTheirOptimizerState) {
  DcpMetadata metadata = StoredUnder("model.", "optimizer.");
  metadata.tensors["model.a.inv_freq"];  // a buffer
  const KeyLayout layout = FindKeyLayout(metadata, kKeys, "it");
  EXPECT_THAT(FindUnknownParameters(metadata, kKeys, layout), IsEmpty());
  metadata.tensors["optimizer.state.b.weight.exp_avg"];
  EXPECT_THAT(FindUnknownParameters(metadata, kKeys, layout),
              ElementsAre("optimizer.state.b.weight.exp_avg"));
  EXPECT_THAT(FindUnknownParameters(metadata, {kKeys[0], kKeys[1]}, layout), IsEmpty());
}

TEST(KeyLayoutTest, AdviceSaysWhatIsWrongWithTheOptimizer) {
  DcpMetadata metadata;
  EXPECT_THAT(AdviseOnOptimizer(metadata, {}), HasSubstr("model.weights"));
  metadata.tensors["optim.state.0.exp_avg"];
  EXPECT_THAT(AdviseOnOptimizer(metadata, {}), HasSubstr("get_optimizer_state_dict()"));
  EXPECT_EQ(AdviseOnOptimizer(StoredUnder("", "optim."), {}), "");
}

/// As another program leaves it: with tensors and objects of these names, without train.state.
class ForeignCheckpointTest : public testing::Test {
 protected:
  /// Saves one tensor and one key of the optimizer under `rename`d keys.
  void Write(const std::function<std::string(const std::string&)>& rename) {
    SaveSteps(dir_.path(), 1, {1});
    const std::string path = dir_ / "step-1/.metadata";
    DcpMetadata metadata = DecodeDcpMetadata(ReadWholeFile(path, 1 << 20), path);
    DcpMetadata renamed;
    for (const auto& [key, tensor] : metadata.tensors) {
      renamed.tensors[rename(key)] = tensor;
    }
    for (const auto& [key, blob] : metadata.objects) {
      if (key != "train.state") {
        renamed.objects[rename(key)] = blob;
      }
    }
    std::ofstream(path) << EncodeDcpMetadata(renamed);
    std::filesystem::remove(dir_ / "step-1/fsdprun.json");
  }

  /// Loads into a state of one rank, and what is thrown, if something is.
  std::string Load(State& state, bool may_lack_objects = true) {
    std::string refusal;
    ThreadRanks(1).Run([&](const std::shared_ptr<fsdp::Collectives>& collectives) {
      const Group group = GroupOf(collectives);
      LoadOptions options;
      options.may_lack_objects = may_lack_objects;
      try {
        checkpoint::Load(FindAt(dir_ / "step-1", group), state, group, options);
      } catch (const MismatchError& error) {
        refusal = error.what();
      }
    });
    return refusal;
  }

  const TemporaryDirectory dir_;
};

TEST_F(ForeignCheckpointTest, IsReadUnderItsOwnKeys) {
  Write([](const std::string& key) {
    return key.starts_with("optim.") ? "app.optimizer." + key.substr(6) : key.substr(6);
  });
  State state = StateOf(0, 1, -1);
  state.training_state_json = "untouched";
  EXPECT_EQ(Load(state), "");
  for (size_t i = 0; i < state.tensors.size(); ++i) {
    EXPECT_TRUE(state.tensors[i].local.equal(PartOf(Whole(i, 1), state.tensors[i])));
  }
  EXPECT_EQ(json::parse(state.param_groups_json)[0]["lr"], 0.1);
  EXPECT_EQ(state.training_state_json, "untouched");
  EXPECT_THAT(Load(state, /*may_lack_objects=*/false), HasSubstr("lacks train.state"));
}

TEST_F(ForeignCheckpointTest, OfAnotherModelIsRefusedByName) {
  Write([](const std::string& key) { return "app." + key; });
  State state = StateOf(0, 1, -1);
  state.tensors[2].fqn = "model.another";
  EXPECT_THAT(Load(state), HasSubstr("it lacks app.model.another; was it written by another"));
  state = StateOf(0, 1, -1);
  state.tensors[0].global_shape = {5, 7};
  EXPECT_THAT(Load(state), HasSubstr("app.model.embed.weight (stored [7, 5], expected [5, 7])"));
  state = StateOf(0, 1, -1);
  state.tensors[3].fqn = "optim.state.norm.weight.exp_avg";
  EXPECT_THAT(Load(state), HasSubstr("it also has app.optim.state.embed.weight.exp_avg"));
}

TEST_F(ForeignCheckpointTest, WithoutAnOptimizerSaysWhatToDo) {
  Write([](const std::string& key) { return key.starts_with("optim.") ? "other." + key : key; });
  State state = StateOf(0, 1, -1);
  state.tensors[3].fqn = "optim.state.norm.weight.exp_avg";
  state.tensors[4].fqn = "optim.state.norm.weight.step";
  EXPECT_THAT(Load(state), AllOf(HasSubstr("it lacks optim.state.norm.weight.exp_avg"),
                                 HasSubstr("set model.weights to its folder")));
}

TEST_F(ForeignCheckpointTest, OptionsOfTheOptimizerAreReadPieceByPiece) {
  Write([](const std::string& key) {
    return key == "optim.param_groups" ? "optim.param_groups.embed.weight.betas" : key;
  });
  State state = StateOf(0, 1, -1);
  EXPECT_EQ(Load(state), "");
  const json groups = json::parse(state.param_groups_json);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0]["params"], json{"embed.weight"});
  EXPECT_EQ(groups[0]["betas"][0]["lr"], 0.1);  // the object that lies there
}

}  // namespace
}  // namespace fsdprun::checkpoint
