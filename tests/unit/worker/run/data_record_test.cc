#include "worker/run/data_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker/run/training_state.h"

namespace fsdprun::worker {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr DataCursor kSomewhere{0, 5};

DataRecord Plain(bool is_shuffled) { return {1000, "old", 16, is_shuffled, 3}; }

/// "refused: <text>" or "warned: <text>" for each change.
std::vector<std::string> Changes(const DataRecord& before, const DataRecord& now,
                                 const std::string& same_part,
                                 const DataCursor& cursor = kSomewhere) {
  std::vector<std::string> texts;
  for (const DataChange& change : CompareData(before, now, same_part, cursor)) {
    texts.push_back((change.loses_position ? "refused: " : "warned: ") + change.text);
  }
  return texts;
}

TEST(DataRecordTest, SameDataIsNoChange) {
  for (const bool is_shuffled : {true, false}) {
    EXPECT_THAT(Changes(Plain(is_shuffled), Plain(is_shuffled), "old"), IsEmpty());
  }
}

TEST(DataRecordTest, AnotherSeedCountsOnlyIfItShuffles) {
  DataRecord now = Plain(true);
  now.seed = 4;
  EXPECT_THAT(Changes(Plain(true), now, "old"),
              ElementsAre("refused: data.seed was 3 at the checkpoint and is 4 now: the position "
                          "in the shuffled text means nothing there"));
  now.is_shuffled = false;
  EXPECT_THAT(Changes(Plain(false), now, "old"), IsEmpty());
}

TEST(DataRecordTest, AnotherOrderIsRefused) {
  EXPECT_THAT(
      Changes(Plain(true), Plain(false), "old"),
      ElementsAre(HasSubstr("refused: data.shuffle was true at the checkpoint and is false")));
  EXPECT_THAT(
      Changes(Plain(false), Plain(true), "old"),
      ElementsAre(HasSubstr("refused: data.shuffle was false at the checkpoint and is true")));
}

TEST(DataRecordTest, TextBehindTheOldEndIsHarmlessUnlessShuffled) {
  for (const bool is_shuffled : {true, false}) {
    DataRecord now = Plain(is_shuffled);
    now.bytes = 1200;
    now.digest = "new";
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre(HasSubstr(is_shuffled ? "refused: " : "warned: ")));
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre(HasSubstr("the text of data.train was 1000 bytes with digest old at "
                                      "the checkpoint and is 1200 bytes with digest new now")));
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "other"), ElementsAre(HasSubstr("refused: ")));
  }
}

TEST(DataRecordTest, OtherAndShorterTextIsRefused) {
  for (const bool is_shuffled : {true, false}) {
    DataRecord now = Plain(is_shuffled);
    now.digest = "new";
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "new"), ElementsAre(HasSubstr("refused: ")));
    now.bytes = 900;
    EXPECT_THAT(Changes(Plain(is_shuffled), now, ""), ElementsAre(HasSubstr("refused: ")));
  }
}

TEST(DataRecordTest, AnotherLengthOfWindowsIsHarmlessUnlessShuffled) {
  for (const bool is_shuffled : {true, false}) {
    DataRecord now = Plain(is_shuffled);
    now.seq_len = 32;
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre(HasSubstr(is_shuffled ? "refused: data.seq_len was 16"
                                                  : "warned: data.seq_len was 16")));
  }
}

TEST(DataRecordTest, RunThatHasReadNothingMayChangeEverything) {
  EXPECT_THAT(Changes(Plain(true), {7, "new", 1, false, 9}, "", DataCursor{0, 0}), IsEmpty());
  EXPECT_EQ(Changes(Plain(true), {7, "new", 1, false, 9}, "", DataCursor{1, 0}).size(), 3u);
}

TEST(DataRecordTest, CursorStaysAtItsToken) {
  EXPECT_EQ(ConvertCursor({2, 10}, 16, 16), (DataCursor{2, 10}));
  EXPECT_EQ(ConvertCursor({2, 10}, 16, 32), (DataCursor{2, 5}));
  EXPECT_EQ(ConvertCursor({2, 10}, 16, 8), (DataCursor{2, 20}));
  EXPECT_EQ(ConvertCursor({0, 3}, 10, 16), (DataCursor{0, 1}));  // token 30 is in the second window
  EXPECT_EQ(ConvertCursor({0, INT64_MAX}, 16, 16), (DataCursor{0, INT64_MAX}));
  EXPECT_THROW(ConvertCursor({0, INT64_MAX / 2}, 16, 8), ConfigError);
}

TEST(DataRecordTest, TrainingStateKeepsIt) {
  const DataRecord record{1000, "0123456789abcdef", 16, true, (uint64_t{1} << 62) + 1};
  const TrainingState state =
      ParseTrainingState(FormatTrainingState({1, 2, {3, 4}, 5, "00", record, 6}));
  ASSERT_TRUE(state.data.has_value());
  EXPECT_THAT(Changes(record, *state.data, record.digest), IsEmpty());
  EXPECT_EQ(std::tie(state.data->bytes, state.data->seq_len, state.data->seed),
            std::tie(record.bytes, record.seq_len, record.seed));
  EXPECT_EQ(state.evaluated_step, 6);
}

TEST(DataRecordTest, StateOfAnOlderVersionHasNone) {
  const TrainingState state = ParseTrainingState(FormatTrainingState({1, 2, {3, 4}, 5, "00"}));
  EXPECT_FALSE(state.data.has_value());
  EXPECT_FALSE(state.evaluated_step.has_value());
}

TEST(DataRecordTest, DamagedRecordIsNamed) {
  Json data;
  FormatDataRecord(Plain(true), data);
  EXPECT_NO_THROW(ParseDataRecord(data));
  for (const char* key : {"bytes", "digest", "seq_len", "shuffle", "seed"}) {
    Json damaged = data;
    damaged[key] = nullptr;
    try {
      ParseDataRecord(damaged);
      ADD_FAILURE() << key;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(std::string("training state: data.") + key + ": expected"));
    }
  }
}

}  // namespace
}  // namespace fsdprun::worker
