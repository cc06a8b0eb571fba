#include "worker/run/run_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/models/decoder/parse_decoder.h"
#include "worker/config/config_schema.h"
#include "worker/run/training_state.h"

namespace fsdprun::worker {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class RunRecordTest : public testing::Test {
 protected:
  RunRecordTest() {
    resolved_["model"]["config"] = "model";
    resolved_["data"]["train"] = {"text"};
    llama_.vocab_size = 256;
    llama_.hidden_size = 32;
    llama_.num_attention_heads = llama_.num_key_value_heads = 4;
    llama_.head_dim = 8;
  }

  RunRecord Record(const DecoderConfig& llama, const Json& resolved, int64_t world_size) const {
    return RecordRun(DescribeDecoder("llama", llama), resolved, world_size);
  }
  RunRecord Now(int64_t world_size = 2) const { return Record(llama_, resolved_, world_size); }

  /// After a checkpoint and back.
  static RunRecord Saved(const RunRecord& record) {
    TrainingState state;
    state.run = record;
    return ParseTrainingState(FormatTrainingState(state)).run.value();
  }

  std::vector<std::string> ModelChanges(const DecoderConfig& before) const {
    std::vector<std::string> texts;
    for (const RunChange& change : CompareRuns(Saved(Record(before, resolved_, 2)), Now())) {
      EXPECT_TRUE(change.is_other_model) << change.text;
      texts.push_back(change.text);
    }
    return texts;
  }

  std::vector<std::string> SettingChanges(const Json& before, int64_t world_size = 2) const {
    std::vector<std::string> texts;
    for (const RunChange& change : CompareRuns(Saved(Record(llama_, before, world_size)), Now())) {
      EXPECT_FALSE(change.is_other_model) << change.text;
      texts.push_back(change.text);
    }
    return texts;
  }

  Json resolved_ = DefaultConfig();
  DecoderConfig llama_;
};

TEST_F(RunRecordTest, TheSameRunHasNoChanges) {
  llama_.rope_scaling = Llama3RopeScaling{};
  llama_.padding_token = 3;
  EXPECT_TRUE(ModelChanges(llama_).empty());
  EXPECT_TRUE(SettingChanges(resolved_).empty());
}

TEST_F(RunRecordTest, ModelThatComputesSomethingElseIsNamed) {
  DecoderConfig before = llama_;
  before.rope_theta = 500000;
  EXPECT_THAT(ModelChanges(before),
              ElementsAre("the model's rope_theta was 500000.0 at the checkpoint and is 10000.0 "
                          "now"));
  before = llama_;
  before.rope_scaling = Llama3RopeScaling{};
  EXPECT_THAT(ModelChanges(before),
              ElementsAre(HasSubstr("rope_scaling was [8.0,1.0,4.0,8192.0]")));
  before = llama_;
  before.num_attention_heads = before.num_key_value_heads = 2;
  before.head_dim = 16;
  EXPECT_THAT(ModelChanges(before),
              ElementsAre(HasSubstr("num_attention_heads was 2"),
                          HasSubstr("num_key_value_heads was 2"), HasSubstr("head_dim was 16")));
  before = llama_;
  before.rms_norm_eps = 1e-5;
  before.padding_token = 0;
  EXPECT_THAT(ModelChanges(before),
              ElementsAre(HasSubstr("rms_norm_eps was 1e-05"), HasSubstr("pad_token_id was 0")));
}

TEST_F(RunRecordTest, ModelOfAnotherFamilyIsNamed) {
  const RunRecord before = Saved(RecordRun(DescribeDecoder("mistral", llama_), resolved_, 2));
  const std::vector<RunChange> changes = CompareRuns(before, Now());
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_TRUE(changes[0].is_other_model);
  EXPECT_THAT(changes[0].text, HasSubstr("model_type was \"mistral\""));
}

TEST_F(RunRecordTest, WhatSaysOnlyHowAModelBeganMayChange) {
  DecoderConfig before = llama_;
  before.initializer_range = 0.5;
  before.max_position_embeddings = 7;
  EXPECT_TRUE(ModelChanges(before).empty());
}

TEST_F(RunRecordTest, SettingsThatChangeTheLossAreNamed) {
  for (const auto& [section, key, value] :
       {std::tuple("optimizer", "lr", Json(0.5)), std::tuple("train", "max_grad_norm", Json(2.5)),
        std::tuple("train", "freeze", Json::array({"*norm*"})),
        std::tuple("schedule", "kind", Json("cosine")),
        std::tuple("schedule", "warmup_steps", Json(3)),
        std::tuple("schedule", "min_lr_ratio", Json(0.25)),
        std::tuple("precision", "param", Json("bfloat16")),
        std::tuple("precision", "reduce", Json("bfloat16")),
        std::tuple("precision", "output", Json("bfloat16"))}) {
    Json before = resolved_;
    before[section][key] = value;
    EXPECT_THAT(SettingChanges(before),
                ElementsAre(HasSubstr(std::string(section) + "." + key + " was " + value.dump() +
                                      " at the checkpoint and is ")));
  }
}

TEST_F(RunRecordTest, OtherSettingsMayChange) {
  Json before = resolved_;
  before["checkpoint"]["keep"] = 7;
  before["train"]["activation_checkpointing"] = true;
  before["train"]["eval_every"] = 7;
  before["parallel"]["backend"] = "gloo";
  EXPECT_TRUE(SettingChanges(before).empty());
}

TEST_F(RunRecordTest, NumberOfStepsMattersWhereTheRateFollowsIt) {
  Json before = resolved_;
  before["train"]["steps"] = 7;
  EXPECT_TRUE(SettingChanges(before).empty());
  resolved_["schedule"]["kind"] = before["schedule"]["kind"] = "linear";
  EXPECT_THAT(SettingChanges(before), ElementsAre(HasSubstr("train.steps was 7")));
}

/// A run of `steps` steps with a warm-up of 10 and a decay of 20.
Json DecayingRun(Json resolved, int64_t steps) {
  resolved["schedule"]["kind"] = "wsd";
  resolved["schedule"]["warmup_steps"] = 10;
  resolved["schedule"]["decay_steps"] = 20;
  resolved["train"]["steps"] = steps;
  return resolved;
}

TEST_F(RunRecordTest, MoreStepsOfWsdAreNoChangeUntilItsDecay) {
  const Json before = DecayingRun(resolved_, 100);
  resolved_ = DecayingRun(resolved_, 200);
  EXPECT_TRUE(SettingChanges(before).empty());
  const RunRecord saved = Saved(Record(llama_, before, 2));
  EXPECT_EQ(DescribeInterruptedDecay(saved, Now(), 0), "");
  EXPECT_EQ(DescribeInterruptedDecay(saved, Now(), 80), "");
  EXPECT_EQ(DescribeInterruptedDecay(saved, saved, 90), "");
}

TEST_F(RunRecordTest, DecayThatIsPutOffWhenItHasBegunIsNamed) {
  const RunRecord saved = Saved(Record(llama_, DecayingRun(resolved_, 100), 2));
  resolved_ = DecayingRun(resolved_, 200);
  EXPECT_EQ(DescribeInterruptedDecay(saved, Now(), 100),
            "train.steps was 100 at the checkpoint and is 200 now, and the decay of schedule.kind "
            "wsd had begun after step 80: the next step has 1 of the highest learning rate instead "
            "of 0; to put the decay off, go on from a checkpoint of step 80 or before");
  EXPECT_THAT(DescribeInterruptedDecay(saved, Now(), 81), HasSubstr("instead of 0.95;"));
  // The rate of the next step is the same, so nothing is interrupted.
  resolved_["train"]["steps"] = 90;
  resolved_["schedule"]["decay_steps"] = 10;
  EXPECT_THAT(DescribeInterruptedDecay(saved, Now(), 90), HasSubstr("has 0 of the highest"));
  resolved_["train"]["steps"] = 110;
  resolved_["schedule"]["decay_steps"] = 40;
  EXPECT_EQ(DescribeInterruptedDecay(saved, Now(), 90), "");
}

TEST_F(RunRecordTest, DecayOfWhatIsNotKnownIsNotInterrupted) {
  RunRecord saved = Record(llama_, DecayingRun(resolved_, 100), 2);
  const RunRecord now = Record(llama_, DecayingRun(resolved_, 200), 2);
  EXPECT_EQ(DescribeInterruptedDecay(Now(), now, 100), "");
  EXPECT_EQ(DescribeInterruptedDecay(saved, Now(), 100), "");
  for (const Json& damaged : {Json("many"), Json(-1), Json(INT64_MAX)}) {
    saved.settings["train.steps"] = damaged;
    EXPECT_EQ(DescribeInterruptedDecay(saved, now, 100), "");
  }
  saved.settings.erase("train.steps");
  EXPECT_EQ(DescribeInterruptedDecay(saved, now, 100), "");
}

TEST_F(RunRecordTest, OnlyTheProductOfWhatMakesABatchCounts) {
  resolved_["train"]["grad_accumulation"] = 2;
  Json before = resolved_;
  before["train"]["grad_accumulation"] = 1;
  EXPECT_TRUE(SettingChanges(before, 4).empty());
  EXPECT_THAT(SettingChanges(before, 2),
              ElementsAre("the number of windows in an optimizer step was 2 at the checkpoint and "
                          "is 4 now"));
}

TEST_F(RunRecordTest, AdaptersAreComparedByThemselves) {
  const Json none = resolved_;
  resolved_["lora"] = {{"rank", 8}, {"alpha", 16.0}, {"targets", {"v_proj", "q_proj"}}};
  const RunRecord now = Now();
  EXPECT_TRUE(CompareAdapters(Saved(now), now).empty());
  EXPECT_TRUE(CompareRuns(Saved(now), now).empty());
  const auto changes = [&](const char* key, const Json& value) {
    Json before = resolved_;
    before["lora"][key] = value;
    return CompareAdapters(Saved(Record(llama_, before, 2)), now);
  };
  EXPECT_THAT(changes("rank", 4), ElementsAre("lora.rank was 4 at the checkpoint and is 8 now"));
  EXPECT_THAT(changes("alpha", 1.0),
              ElementsAre("lora.alpha was 1.0 at the checkpoint and is 16.0 now"));
  EXPECT_THAT(changes("targets", {"k_proj"}),
              ElementsAre("lora.targets was [\"k_proj\"] at the checkpoint and is "
                          "[\"q_proj\",\"v_proj\"] now"));
  EXPECT_TRUE(changes("targets", {"q_proj", "v_proj"}).empty());
  EXPECT_THAT(CompareAdapters(Saved(Record(llama_, none, 2)), now),
              ElementsAre("the checkpoint has no adapters, and lora.rank is 8 now"));
  EXPECT_THAT(CompareAdapters(Saved(now), Record(llama_, none, 2)),
              ElementsAre("the checkpoint has adapters alone, and lora.rank is 0 now"));
}

TEST_F(RunRecordTest, AnotherBaseIsAnotherModel) {
  resolved_["lora"]["rank"] = 8;
  RunRecord before = Now(), now = before;
  before.adapters[kBaseDigest] = "aa";
  EXPECT_TRUE(CompareAdapters(Saved(before), now).empty());  // not known yet
  now.adapters[kBaseDigest] = "bb";
  EXPECT_THAT(CompareAdapters(Saved(before), now),
              ElementsAre("the digest of the base was \"aa\" at the checkpoint and is \"bb\" now"));
}

TEST_F(RunRecordTest, WhatACheckpointLacksIsSaidByItsRun) {
  const std::string missing = "it lacks optim.state.lm_head.weight.exp_avg";
  const RunRecord now = Now();
  EXPECT_EQ(DescribeMismatch(Saved(now), now, missing), missing);
  RunRecord frozen = now;
  frozen.settings["train.freeze"] = {"lm_head*"};
  const std::string text = DescribeMismatch(Saved(frozen), now, missing);
  EXPECT_THAT(text, HasSubstr("train.freeze was [\"lm_head*\"] at the checkpoint and is [] now"));
  EXPECT_THAT(text, HasSubstr("model.weights"));
  EXPECT_EQ(DescribeMismatch(Saved(frozen), now, "it lacks model.x"), "it lacks model.x");
  frozen.settings["optimizer.name"] = "sgd";  // that is reason enough
  EXPECT_EQ(DescribeMismatch(Saved(frozen), now, missing), missing);
  EXPECT_EQ(DescribeMismatch({}, now, missing), missing);
  resolved_["lora"]["rank"] = 8;
  EXPECT_EQ(DescribeMismatch(Saved(now), Now(), missing),
            "the checkpoint has no adapters, and lora.rank is 8 now");
}

// With model.on_change = "warn" another alpha or base is allowed, and then not why keys are
// missing.
TEST_F(RunRecordTest, AdaptersAreTheReasonOnlyIfTheirWeightsAreMissing) {
  resolved_["lora"]["rank"] = 8;
  const RunRecord now = Now();
  RunRecord before = now;
  before.adapters["lora.alpha"] = 1.0;
  const std::string weight = "model.layers.0.self_attn.q_proj.lora_A.weight";
  const std::string alpha = "lora.alpha was 1.0 at the checkpoint and is 16.0 now";
  const std::string of_optimizer = "it lacks optim.state." + weight + ".exp_avg, optim.state." +
                                   weight + ".step; was it trained with another optimizer.name?";
  EXPECT_EQ(DescribeMismatch(Saved(before), now, of_optimizer), of_optimizer);
  EXPECT_EQ(DescribeMismatch(Saved(before), now, "it lacks x, " + weight + "; why?"), alpha);
  EXPECT_EQ(DescribeMismatch(Saved(before), now, "other shapes: x (stored [2], expected [4])"),
            alpha);
}

TEST_F(RunRecordTest, WhatAnOlderVersionDidNotWriteIsNotCompared) {
  RunRecord before = Now();
  before.model.erase("rope_theta");
  before.settings = Json::object();
  llama_.rope_theta = 500000;
  EXPECT_TRUE(CompareRuns(before, Now(7)).empty());
  EXPECT_FALSE(ParseTrainingState(FormatTrainingState({})).run.has_value());
}

TEST_F(RunRecordTest, DamagedRecordIsRefused) {
  TrainingState state;
  resolved_["lora"]["rank"] = 8;
  state.run = Now();
  for (const char* key : {"model", "settings", "adapters"}) {
    Json document = Json::parse(FormatTrainingState(state));
    document[key] = {1, 2};
    EXPECT_THROW(ParseTrainingState(document.dump()), ConfigError) << key;
  }
}

}  // namespace
}  // namespace fsdprun::worker
