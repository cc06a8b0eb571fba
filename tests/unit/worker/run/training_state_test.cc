#include "worker/run/training_state.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

#include "formats/checkpoint/error.h"

namespace fsdprun::worker {
namespace {

std::string Refusal(const std::string& text) {
  try {
    ParseTrainingState(text);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "accepted";
}

/// A good state with one value replaced; "/data/epoch" names a nested one.
std::string With(const std::string& pointer, const nlohmann::json& value) {
  auto document = nlohmann::json::parse(FormatTrainingState({1, 2, {3, 4}, 5, "00ff"}));
  document[nlohmann::json::json_pointer(pointer)] = value;
  return document.dump();
}

TEST(TrainingStateTest, ComesBackAsItWas) {
  const int64_t large = (int64_t{1} << 53) - 8;
  const TrainingState state = ParseTrainingState(
      FormatTrainingState({large, large + 2, {large + 4, large + 6}, large + 8, "0123abcdef"}));
  EXPECT_EQ(state.step, large);
  EXPECT_EQ(state.tokens, large + 2);
  EXPECT_EQ(state.cursor, (DataCursor{large + 4, large + 6}));
  EXPECT_EQ(state.windows, large + 8);
  EXPECT_EQ(state.rng, "0123abcdef");
}

TEST(TrainingStateTest, WhatIsImpossibleIsNamed) {
  EXPECT_EQ(Refusal(With("/step", 1)), "accepted");
  EXPECT_EQ(Refusal(With("/step", -1)),
            "training state: step is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/tokens", 1.5)),
            "training state: tokens is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/data/epoch", nullptr)),
            "training state: epoch is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/data", 7)),
            "training state: epoch is missing or not a count from 0 to 2^53");
  EXPECT_EQ(Refusal(With("/format", 2)), "training state: format 2: expected 1");
  EXPECT_EQ(Refusal(With("/rng", 7)), "training state: data or rng is missing");
  EXPECT_EQ(Refusal("[]"), "training state: format is missing or not a count from 0 to 2^53");
  EXPECT_NE(Refusal("{").find("not valid JSON"), std::string::npos);
}

TEST(TrainingStateTest, DescriptionComesBackAsItWas) {
  EXPECT_FALSE(ParseTrainingState(FormatTrainingState({1, 2, {3, 4}, 5, "00ff"})).description);
  TrainingState state{1, 2, {3, 4}, 5, "00ff"};
  state.description = RunDescription{{{"optimizer", {{"lr", 0.1}}}},
                                     {{"rope_scaling", nullptr}, {"sizes", {1, 2.5}}},
                                     "/models/one"};
  const TrainingState back = ParseTrainingState(FormatTrainingState(state));
  ASSERT_TRUE(back.description);
  EXPECT_EQ(back.description->config, state.description->config);
  EXPECT_EQ(back.description->model_config, state.description->model_config);
  EXPECT_EQ(back.description->model_folder, "/models/one");
}

TEST(TrainingStateTest, DescriptionOfAnotherKindIsRefused) {
  TrainingState state{1, 2, {3, 4}, 5, "00ff"};
  state.description = RunDescription{};
  for (const char* field : {"config", "model_config"}) {
    auto document = nlohmann::json::parse(FormatTrainingState(state));
    document[field] = "a text";
    EXPECT_EQ(Refusal(document.dump()),
              std::string("training state: ") + field + ": expected an object");
  }
}

// A step adds to the tokens, a round to the offset, and the end of an epoch to its number.
TEST(TrainingStateTest, CountsThatWouldOverflowAreRefused) {
  const int64_t most = int64_t{1} << 53;
  for (const char* name : {"/step", "/tokens", "/data/epoch", "/data/offset", "/data/windows"}) {
    EXPECT_EQ(Refusal(With(name, most)), "accepted") << name;
    const std::string key = std::string(name).substr(std::string(name).rfind('/') + 1);
    const std::string refusal =
        "training state: " + key + " is missing or not a count from 0 to 2^53";
    EXPECT_EQ(Refusal(With(name, most + 1)), refusal);
    EXPECT_EQ(Refusal(With(name, std::numeric_limits<int64_t>::max())), refusal);
    EXPECT_EQ(Refusal(With(name, std::numeric_limits<uint64_t>::max())), refusal);
  }
}

// The same as what a run of this size has come to.
TEST(TrainingStateTest, StepsOfAnotherProgramAreCountedInTokens) {
  for (int64_t step = 0; step <= 9; ++step) {
    const TrainingState derived = DeriveTrainingState(step, {.samples = 6, .seq_len = 16}, 10);
    EXPECT_EQ(derived.step, step);
    EXPECT_EQ(derived.tokens, step * 6 * 16);
    EXPECT_EQ(derived.windows, 10);
    EXPECT_TRUE(derived.rng.empty());
  }
}

TEST(TrainingStateTest, StepsOfAnotherProgramThatCannotBeCountedAreRefused) {
  const int64_t most = int64_t{1} << 43;
  EXPECT_EQ(DeriveTrainingState(most, {4, 256}, 7).tokens, int64_t{1} << 53);
  EXPECT_THROW(DeriveTrainingState(most + 1, {4, 256}, 7), checkpoint::MismatchError);
}

TEST(TrainingStateTest, BadStepsAreThereOnlyIfThereWereSome) {
  TrainingState state;
  EXPECT_EQ(FormatTrainingState(state).find("bad_data"), std::string::npos);
  EXPECT_EQ(FormatTrainingState(state).find("judged"), std::string::npos);
  state.bad_data = {{{0, 8}, {0, 16}}, {{0, 96}, {1, 0}}};
  state.judged = {{2.5, 0.1}, {1.25, 1e-9}};
  const TrainingState parsed = ParseTrainingState(FormatTrainingState(state));
  EXPECT_EQ(parsed.bad_data, state.bad_data);
  EXPECT_EQ(parsed.judged, state.judged);
}

TEST(TrainingStateTest, BadStepsThatCannotBeAreRefused) {
  const auto error_with = [](const std::string& key, const std::string& value) -> std::string {
    Json document = Json::parse(FormatTrainingState({}));
    document[key] = Json::parse(value);
    try {
      ParseTrainingState(document.dump());
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_EQ(error_with("bad_data", "[[0, 8, 0, 16], [0, 8, 0]]"),
            "training state: bad_data has [0,8,0]: expected two positions of epoch and offset");
  EXPECT_EQ(error_with("bad_data", "[[0, -8, 0, 16]]"),
            "training state: bad_data has [0,-8,0,16]: expected two positions of epoch and offset");
  EXPECT_EQ(error_with("bad_data", "[[1, 8, 1, 8]]"),
            "training state: bad_data has [1,8,1,8]: expected an end behind the beginning");
  EXPECT_EQ(error_with("bad_data", "[7]"),
            "training state: bad_data has 7: expected two positions of epoch and offset");
  EXPECT_EQ(error_with("judged", R"({"losses": [1]})"),
            "training state: judged: grad_norms is missing or not a list of numbers");
  EXPECT_EQ(error_with("judged", R"({"losses": [1], "grad_norms": [1, 2]})"),
            "training state: judged: losses and grad_norms have different lengths");
  EXPECT_EQ(error_with("judged", R"({"losses": ["1"], "grad_norms": [1]})"),
            "training state: judged: losses is missing or not a list of numbers");
}

/// Of steps of `samples`, in epochs of 32.
DataCursor BehindAll(const std::vector<DataRange>& left_out, DataCursor cursor, int64_t samples) {
  return BeginBehind(left_out, cursor, [samples](const DataCursor& begin) {
    const int64_t end = begin.offset + samples;
    return DataCursor{begin.epoch + end / 32, end % 32};
  });
}

TEST(DataRangeTest, AStepBeginsBehindAllDataThatAreLeftOut) {
  const std::vector<DataRange> left_out = {
      {{0, 16}, {0, 24}}, {{0, 8}, {0, 16}}, {{0, 24}, {1, 0}}};
  EXPECT_EQ(BehindAll(left_out, {0, 0}, 8), (DataCursor{0, 0}));
  EXPECT_EQ(BehindAll(left_out, {0, 8}, 8), (DataCursor{1, 0}));
  EXPECT_EQ(BehindAll({}, {3, 8}, 8), (DataCursor{3, 8}));
}

TEST(DataRangeTest, AStepThatIsCutOtherwiseTakesNoneOfThemEither) {
  const std::vector<DataRange> left_out = {{{0, 8}, {0, 16}}, {{0, 24}, {1, 8}}};
  EXPECT_EQ(BehindAll(left_out, {0, 12}, 6), (DataCursor{0, 16}));  // begins among them
  EXPECT_EQ(BehindAll(left_out, {0, 4}, 6), (DataCursor{0, 16}));   // would run into them
  EXPECT_EQ(BehindAll(left_out, {0, 2}, 6), (DataCursor{0, 2}));    // ends before them
  EXPECT_EQ(BehindAll(left_out, {0, 4}, 12), (DataCursor{1, 8}));   // and then into others
  EXPECT_EQ(BehindAll(left_out, {0, 30}, 6), (DataCursor{1, 8}));
}

}  // namespace
}  // namespace fsdprun::worker
