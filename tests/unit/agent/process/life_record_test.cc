#include "agent/process/life_record.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fsdprun::keeper {
namespace {

std::vector<Report> Told(const LifeRecord& record, std::string_view output = "") {
  const std::string text = record.Tell(42, output);
  std::string_view rest = text;
  std::string_view frame;
  std::vector<Report> reports;
  while (NextFrame(rest, kMaxReportBytes, frame) == FrameState::kComplete) {
    reports.push_back(*DecodeReport(frame));
    rest.remove_prefix(kFrameHeaderBytes + frame.size());
  }
  EXPECT_TRUE(rest.empty());
  return reports;
}

std::vector<size_t> Kinds(const std::vector<Report>& reports) {
  std::vector<size_t> kinds;
  for (const Report& report : reports) {
    kinds.push_back(report.index());
  }
  return kinds;
}

template <class Message>
size_t Kind() {
  return Report(Message{}).index();
}

TEST(LifeRecordTest, AnAgentThatHasLeftNothing) {
  EXPECT_THAT(Kinds(Told({})), testing::ElementsAre(Kind<HelloReport>(), Kind<MemoReport>()));
}

TEST(LifeRecordTest, TheEndOfSomeIsNoneOnceAnotherIsStarted) {
  LifeRecord record;
  EXPECT_TRUE(record.Begin(0, 7));
  record.Note(SpawnedReport{.local_rank = 0, .pid = 5, .life = 7});
  record.Note(ExitedReport{.local_rank = 0, .life = 7});
  record.Note(AllGoneReport{7});
  EXPECT_FALSE(record.Begin(0, 7));
  EXPECT_EQ(Told(record).back().index(), Kind<AllGoneReport>());
  EXPECT_TRUE(record.Begin(1, 7));
  EXPECT_THAT(Kinds(Told(record)),
              testing::ElementsAre(Kind<HelloReport>(), Kind<MemoReport>(), Kind<SpawnedReport>(),
                                   Kind<ExitedReport>()));
}

TEST(LifeRecordTest, WhatWasReportedComesAgainInOrderSizesFirst) {
  LifeRecord record;
  EXPECT_TRUE(record.Begin(0, 7));
  EXPECT_TRUE(record.Begin(1, 7));
  EXPECT_FALSE(record.Begin(0, 7));
  record.Memo("memo");
  record.Note(SpawnedReport{.local_rank = 0, .pid = 5, .life = 7});
  record.Note(LogGrewReport{0, Stream::kStdout, 10, 7});
  record.Note(LogGrewReport{0, Stream::kStdout, 20, 7});
  record.Shown({0, Stream::kStdout, 15, 7});
  record.Note(ExitedReport{.local_rank = 0, .life = 7});
  record.Note(AllGoneReport{7});
  record.Note(AllGoneReport{7});
  const std::vector<Report> told = Told(record);
  EXPECT_THAT(Kinds(told),
              testing::ElementsAre(Kind<HelloReport>(), Kind<MemoReport>(), Kind<ShownReport>(),
                                   Kind<LogGrewReport>(), Kind<SpawnedReport>(),
                                   Kind<ExitedReport>(), Kind<AllGoneReport>()));
  EXPECT_EQ(std::get<HelloReport>(told[0]).pid, 42);
  EXPECT_EQ(std::get<MemoReport>(told[1]).memo, "memo");
  EXPECT_EQ(std::get<ShownReport>(told[2]).offset, 15u);
  EXPECT_EQ(std::get<LogGrewReport>(told[3]).size_bytes, 20u);
}

TEST(LifeRecordTest, ANewLifeBeginsWithNothingButTheMemo) {
  LifeRecord record;
  record.Begin(0, 7);
  record.Memo("memo");
  record.Note(ExitedReport{.local_rank = 0, .life = 7});
  record.Note(LogGrewReport{0, Stream::kStdout, 10, 7});
  record.Shown({0, Stream::kStdout, 10, 7});
  EXPECT_TRUE(record.Begin(0, 8));
  record.Shown({0, Stream::kStdout, 10, 7});  // Late, of the last life.
  record.Note(ExitedReport{.local_rank = 0, .life = 7});
  record.Note(LogGrewReport{0, Stream::kStdout, 10, 7});
  const std::vector<Report> told = Told(record);
  EXPECT_THAT(Kinds(told), testing::ElementsAre(Kind<HelloReport>(), Kind<MemoReport>()));
  EXPECT_EQ(std::get<MemoReport>(told[1]).memo, "memo");
}

TEST(LifeRecordTest, OfWhatWasNotSentOnlyWhatCannotBeToldAgainIsRepeated) {
  LifeRecord record;
  record.Begin(0, 7);
  std::string unsent;
  AppendReport(SpawnedReport{.local_rank = 0, .life = 7}, unsent);
  AppendLogData(0, 7, Stream::kStderr, "lost else", unsent);
  AppendReport(LogGrewReport{0, Stream::kStdout, 10, 7}, unsent);
  AppendControlRecord(0, 7, "{}", unsent);
  record.Note(SpawnedReport{.local_rank = 0, .life = 7});
  EXPECT_THAT(Kinds(Told(record, unsent)),
              testing::ElementsAre(Kind<HelloReport>(), Kind<MemoReport>(), Kind<LogDataReport>(),
                                   Kind<ControlRecordReport>(), Kind<SpawnedReport>()));
}

}  // namespace
}  // namespace fsdprun::keeper
