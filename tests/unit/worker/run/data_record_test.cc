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
    now.tokens = 1200;
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
    now.tokens = 900;
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

TEST(DataRecordTest, OtherOrderAndOtherCutsAreRefusedWhereTheyMeanOtherWindows) {
  for (const bool is_shuffled : {true, false}) {
    DataRecord now = Plain(is_shuffled);
    now.sampler = "global";
    EXPECT_THAT(
        Changes(Plain(is_shuffled), now, "old"),
        ElementsAre(HasSubstr(std::string(is_shuffled ? "refused: " : "warned: ") +
                              "data.sampler was torch at the checkpoint and is global now")));
    now = Plain(is_shuffled);
    now.documents = "separate";
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre("refused: data.documents was join at the checkpoint and is separate "
                            "now: its windows are others"));
    now.documents = "mask";
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre("warned: data.documents was join at the checkpoint and is mask now"));
    now = Plain(is_shuffled);
    now.drops_last = true;
    EXPECT_THAT(Changes(Plain(is_shuffled), now, "old"),
                ElementsAre("warned: data.drop_last was false at the checkpoint and is true now"));
  }
}

DataRecord WithDocuments(const std::string& documents, const DocumentEnds& ends,
                         int64_t windows = 60) {
  DataRecord record = Plain(true);
  record.is_text = false;
  record.documents = documents;
  record.document_ends = ends;
  record.windows = windows;
  return record;
}

TEST(DataRecordTest, OtherEndsOfDocumentsInTheSameTokensAreOtherWindowsIfTheyCutThem) {
  EXPECT_THAT(
      Changes(WithDocuments("separate", {.id = 0}), WithDocuments("separate", {.id = 7}), "old"),
      ElementsAre("refused: where documents end (data.document_end, or an index) was the "
                  "id 0 at the checkpoint and is the id 7 now: its windows are others"));
  EXPECT_THAT(Changes(WithDocuments("separate", {.digest = "one"}),
                      WithDocuments("separate", {.digest = "two"}, 61), "old"),
              ElementsAre(HasSubstr("refused: where documents end (data.document_end, or an index) "
                                    "was the digest one at the checkpoint and is the digest two")));
  EXPECT_THAT(Changes(WithDocuments("mask", {.digest = "one"}),
                      WithDocuments("mask", {.digest = "two"}), "old"),
              ElementsAre("warned: where documents end (data.document_end, or an index) was the "
                          "digest one at the checkpoint and is the digest two now"));
}

TEST(DataRecordTest, AnotherNumberOfWindowsOfDocumentsIsRefusedWhateverSaysTheirEnds) {
  const DataRecord by_index = WithDocuments("separate", {.digest = "one"});
  EXPECT_THAT(Changes(by_index, WithDocuments("separate", {.id = 0}), "old"), IsEmpty());
  EXPECT_THAT(Changes(by_index, WithDocuments("separate", {.id = 0}, 61), "old"),
              ElementsAre("refused: the number of windows that documents are cut into was 60 at "
                          "the checkpoint and is 61 now: its windows are others"));
  // A checkpoint that does not say where they end.
  EXPECT_THAT(
      Changes(WithDocuments("separate", {}), WithDocuments("separate", {.id = 0}, 61), "old"),
      ElementsAre(HasSubstr("refused: the number of windows")));
  EXPECT_THAT(Changes(WithDocuments("separate", {}, 0), by_index, "old"), IsEmpty());
}

TEST(DataRecordTest, EndsOfDocumentsAreNotToldBesideAnotherCause) {
  DataRecord now = WithDocuments("separate", {.id = 7}, 61);
  now.tokens = 1200;
  EXPECT_THAT(Changes(WithDocuments("separate", {.id = 0}), now, "old"),
              ElementsAre(HasSubstr("refused: the data of data.train was 1000 tokens")));
  EXPECT_THAT(
      Changes(WithDocuments("mask", {.id = 0}), WithDocuments("separate", {.id = 7}, 61), "old"),
      ElementsAre(HasSubstr("refused: data.documents was mask")));
  now = WithDocuments("separate", {.id = 0}, 31);
  now.seq_len = 32;
  EXPECT_THAT(Changes(WithDocuments("separate", {.id = 0}), now, "old"),
              ElementsAre(HasSubstr("refused: data.seq_len was 16")));
}

TEST(DataRecordTest, MixtureHasNoOldEnd) {
  DataRecord before = Plain(false);
  before.is_mixture = true;
  DataRecord now = before;
  now.tokens = 1200;
  now.digest = "new";
  EXPECT_THAT(Changes(before, now, "old"),
              ElementsAre(HasSubstr("refused: the mixture of data.mixture was 1000 bytes")));
  EXPECT_THAT(Changes(before, Plain(false), "old"), ElementsAre(HasSubstr("refused: the mixture")));
}

TEST(DataRecordTest, TokensOfAnotherTokenizerAreRefused) {
  DataRecord before = Plain(false);
  before.is_text = false;
  before.tokenizer = "one";
  DataRecord now = before;
  now.tokens = 1200;
  EXPECT_THAT(Changes(before, now, "old"),
              ElementsAre(HasSubstr("warned: the data of data.train was 1000 tokens")));
  now = before;
  now.tokenizer = "two";
  EXPECT_THAT(Changes(before, now, "old"),
              ElementsAre(HasSubstr("refused: the tokenizer of the data was one at the checkpoint "
                                    "and is two now")));
  now.tokenizer = "";  // nobody says what it is
  EXPECT_THAT(Changes(before, now, "old"), IsEmpty());
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
  DataRecord record{1000, "0123456789abcdef", 16, true, (uint64_t{1} << 62) + 1};
  record.is_text = false;
  record.is_mixture = true;
  record.sampler = "global";
  record.drops_last = true;
  record.documents = "mask";
  record.tokenizer = "fedcba9876543210";
  record.windows = 62;
  record.document_ends = {"0011223344556677", 5};
  const TrainingState state =
      ParseTrainingState(FormatTrainingState({1, 2, {3, 4}, 62, "00", record, 6}));
  ASSERT_TRUE(state.data.has_value());
  EXPECT_THAT(Changes(record, *state.data, record.digest), IsEmpty());
  EXPECT_EQ(std::tie(state.data->tokens, state.data->seq_len, state.data->seed),
            std::tie(record.tokens, record.seq_len, record.seed));
  EXPECT_EQ(std::tie(state.data->is_mixture, state.data->drops_last, state.data->documents,
                     state.data->tokenizer),
            std::tie(record.is_mixture, record.drops_last, record.documents, record.tokenizer));
  EXPECT_EQ(state.data->windows, 62);
  EXPECT_EQ(state.data->document_ends, record.document_ends);
  EXPECT_EQ(state.evaluated_step, 6);
}

TEST(DataRecordTest, RecordOfAnOlderVersionIsOfTextInTorchsOrder) {
  const Json data = {
      {"bytes", 1000}, {"digest", "old"}, {"seq_len", 16}, {"shuffle", true}, {"seed", 3}};
  const DataRecord record = ParseDataRecord(data);
  EXPECT_EQ(record.tokens, 1000);
  EXPECT_TRUE(record.is_text);
  EXPECT_EQ(record.document_ends, DocumentEnds{});
  EXPECT_THAT(Changes(record, Plain(true), "old"), IsEmpty());
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
  for (const char* key :
       {"bytes", "digest", "seq_len", "shuffle", "seed", "mixture", "drop_last", "documents",
        "tokenizer", "sampler", "windows", "document_ends", "document_end"}) {
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
