#include "launcher/journal/etcd_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/unit/launcher/etcd/fake_etcd.h"
#include "tests/unit/launcher/journal/record_sample.h"

namespace fsdprun {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kKey = "/fsdprun/journal/run7";

class EtcdJournalTest : public ::testing::Test {
 protected:
  EtcdJournal::Options OptionsOf(const std::string& holder_id) {
    EtcdJournal::Options options{.key = kKey, .job = SampleJob(), .holder_id = holder_id};
    options.renewal_interval = std::chrono::hours(1);  // A test renews by Confirm().
    return options;
  }
  absl::StatusOr<std::unique_ptr<EtcdJournal>> TryToOpen(EtcdJournal::Options options) {
    return EtcdJournal::Open(etcd_.MakeClient(), std::move(options));
  }
  std::unique_ptr<EtcdJournal> Open(EtcdJournal::Options options) {
    absl::StatusOr<std::unique_ptr<EtcdJournal>> journal = TryToOpen(std::move(options));
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  std::unique_ptr<EtcdJournal> Open(const std::string& holder_id = "first") {
    return Open(OptionsOf(holder_id));
  }
  std::string WhyNot(EtcdJournal::Options options) {
    return std::string(TryToOpen(std::move(options)).status().message());
  }
  /// A coordinator on another machine, of which nothing but its lease is known.
  void HoldFromElsewhere() {
    const std::string text = EncodeHolder({"other", 7, "elsewhere", "another boot"});
    data_.Put(absl::StrCat(kKey, "/holder"), text);
    data_.Put(absl::StrCat(kKey, "/alive"), text, data_.Grant(10));
  }
  std::string Record() { return data_.Get(absl::StrCat(kKey, "/record"))->value; }
  int Parts() {
    int count = 0;
    for (const auto& [key, value] : data_.All()) {
      count += key.find("/parts/") != std::string::npos ? 1 : 0;
    }
    return count;
  }

  FakeEtcd etcd_;
  EtcdData& data_ = etcd_.data();
};

TEST_F(EtcdJournalTest, HasTheLastRecord) {
  {
    const auto journal = Open();
    EXPECT_FALSE(journal->found().has_value());
    ASSERT_TRUE(journal->Write(job::Record()).ok());
    ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  }
  const auto journal = Open("second");
  ASSERT_TRUE(journal->found().has_value());
  EXPECT_EQ(journal->found()->generation, Generation(5));
  EXPECT_EQ(journal->found()->world.members.size(), 2u);
}

TEST_F(EtcdJournalTest, ThatWasLetGoIsTakenAtOnce) {
  { Open(); }
  EXPECT_FALSE(data_.Get(absl::StrCat(kKey, "/alive")).has_value());
  Open("second");
}

TEST_F(EtcdJournalTest, IsOfWhoeverRenewsItsLease) {
  HoldFromElsewhere();
  data_.ShowSecondsLeft({9, 8, 10, 9, 10});
  EXPECT_THAT(WhyNot(OptionsOf("second")),
              AllOf(HasSubstr("another coordinator uses /fsdprun/journal/run7"),
                    HasSubstr("process 7 on elsewhere")));
}

TEST_F(EtcdJournalTest, OfWhoIsSilentIsWaitedFor) {
  HoldFromElsewhere();
  EtcdJournal::Options options = OptionsOf("second");
  std::string notice;
  options.notify = [&](const std::string& text) {
    notice = text;
    data_.Expire();
  };
  Open(std::move(options));
  EXPECT_THAT(notice, AllOf(HasSubstr("process 7 on elsewhere"), HasSubstr("at most 10 s")));
}

TEST_F(EtcdJournalTest, OfAProcessThatHasEndedHereIsTakenAtOnce) {
  Holder gone{"gone", ::getpid(), "here", ProcessMark(::getpid())};
  gone.mark += "0";
  data_.Put(absl::StrCat(kKey, "/holder"), EncodeHolder(gone));
  data_.Put(absl::StrCat(kKey, "/alive"), EncodeHolder(gone), data_.Grant(10));
  Open("second");
}

TEST_F(EtcdJournalTest, OpeningIsInterrupted) {
  HoldFromElsewhere();
  EtcdJournal::Options options = OptionsOf("second");
  options.is_cancelled = [] { return true; };
  EXPECT_TRUE(absl::IsCancelled(TryToOpen(std::move(options)).status()));
}

TEST_F(EtcdJournalTest, WhoWasReplacedWritesNothingAnyMore) {
  const auto first = Open();
  ASSERT_TRUE(first->Write(job::Record()).ok());
  data_.Expire();  // It was stopped for too long.
  const auto second = Open("second");
  ASSERT_TRUE(second->Write(SampleRecord()).ok());
  const auto before = data_.All();
  for (const absl::Status& status : {first->Write(job::Record()), first->Confirm()}) {
    EXPECT_TRUE(absl::IsAborted(status));
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("has taken run id 'run/\n1' over"), HasSubstr("ends here")));
  }
  EXPECT_EQ(data_.All(), before);
  EXPECT_TRUE(second->Confirm().ok());
}

TEST_F(EtcdJournalTest, IsSurelyOwnForLessThanTheLeaseAfterEachRenewal) {
  const MonoTime before = MonoNow();
  const auto journal = Open();
  const MonoTime first = journal->sure_until();
  EXPECT_GT(first, before);
  EXPECT_LT(first, MonoNow() + std::chrono::seconds(EtcdJournal::kLeaseSeconds));
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  EXPECT_EQ(journal->sure_until(), first);
  EXPECT_TRUE(journal->Confirm().ok());
  const MonoTime second = journal->sure_until();
  EXPECT_GT(second, first);
  data_.RefuseWrites(true);
  data_.Expire();
  EXPECT_FALSE(journal->Confirm().ok());
  EXPECT_EQ(journal->sure_until(), second);
}

TEST_F(EtcdJournalTest, WhoWasReplacedStaysSoWhenTheOtherHasLeft) {
  const auto first = Open();
  data_.Expire();
  { Open("second"); }
  EXPECT_TRUE(absl::IsAborted(first->Write(SampleRecord())));
  EXPECT_TRUE(absl::IsAborted(first->Confirm()));
}

TEST_F(EtcdJournalTest, WhoWasReplacedHearsOfItByItself) {
  EtcdJournal::Options options = OptionsOf("first");
  options.renewal_interval = std::chrono::milliseconds(5);
  std::promise<void> told;
  std::atomic<bool> is_told{false};
  options.on_taken = [&](const absl::Status& why) {
    EXPECT_TRUE(absl::IsAborted(why));
    if (!is_told.exchange(true)) {
      told.set_value();
    }
  };
  const auto first = Open(std::move(options));
  const std::string other = EncodeHolder({"other", 7, "elsewhere", "another boot"});
  data_.Put(absl::StrCat(kKey, "/holder"), other);
  data_.Put(absl::StrCat(kKey, "/alive"), other);
  told.get_future().wait();
}

TEST_F(EtcdJournalTest, WhoWasSilentAndNotReplacedGoesOn) {
  const auto journal = Open();
  data_.Expire();
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  EXPECT_TRUE(journal->Confirm().ok());
  const auto alive = data_.Get(absl::StrCat(kKey, "/alive"));
  ASSERT_TRUE(alive.has_value());
  EXPECT_TRUE(data_.IsAlive(alive->lease));
}

TEST_F(EtcdJournalTest, WhatSomebodyHasDeletedIsPutThereAgain) {
  const auto journal = Open();
  ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  data_.Delete(absl::StrCat(kKey, "/holder"));
  data_.Delete(absl::StrCat(kKey, "/record"));
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  EXPECT_TRUE(journal->Confirm().ok());
  EXPECT_THAT(Record(), HasSubstr("fsdprun journal"));
}

TEST_F(EtcdJournalTest, WhatSomebodyHasDeletedIsNotPutThereAgainByWhoMayHaveBeenReplaced) {
  EtcdJournal::Options options = OptionsOf("first");
  data_.HideNextSuccess();  // So it is not sure yet that it has it.
  const auto journal = Open(std::move(options));
  EXPECT_LT(journal->sure_until(), MonoNow());
  data_.Delete(absl::StrCat(kKey, "/holder"));
  data_.Delete(absl::StrCat(kKey, "/alive"));
  const auto before = data_.All();
  for (const absl::Status& status : {journal->Write(SampleRecord()), journal->Confirm()}) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("/holder"), HasSubstr("was deleted while this coordinator could"),
                      HasSubstr("end this one and start it again")));
  }
  EXPECT_EQ(data_.All(), before);
  EXPECT_LT(journal->sure_until(), MonoNow());
}

TEST_F(EtcdJournalTest, AWriteOfWhichNothingWasHeardIsFound) {
  const auto journal = Open();
  data_.HideNextSuccess();
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  const std::string there = Record();
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  EXPECT_EQ(Record(), there);
}

TEST_F(EtcdJournalTest, AWriteThatIsCarriedOutLateDoesNotReplaceOneAfterIt) {
  const auto journal = Open();
  data_.DelayNextChange();
  EXPECT_TRUE(absl::IsUnavailable(journal->Write(job::Record())));
  ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  const auto before = data_.All();
  EXPECT_FALSE(data_.DoDelayed());
  EXPECT_EQ(data_.All(), before);
}

TEST_F(EtcdJournalTest, AWriteThatIsCarriedOutLateButBeforeTheNextIsReplaced) {
  const auto journal = Open();
  data_.DelayNextChange();
  EXPECT_TRUE(absl::IsUnavailable(journal->Write(job::Record())));
  EXPECT_TRUE(data_.DoDelayed());
  const std::string there = Record();
  ASSERT_TRUE(journal->Write(SampleRecord()).ok());
  EXPECT_NE(Record(), there);
}

TEST_F(EtcdJournalTest, APartThatIsCarriedOutLateDoesNotSpoilTheRecordAfterIt) {
  EtcdJournal::Options options = OptionsOf("first");
  options.part_bytes = 100;
  {
    const auto journal = Open(options);
    data_.DelayNextChange();
    EXPECT_TRUE(absl::IsUnavailable(journal->Write(SampleRecord())));
    job::Record next = SampleRecord();
    next.generation = Generation(6);
    ASSERT_TRUE(journal->Write(next).ok());
    EXPECT_FALSE(data_.DoDelayed());
  }
  options.holder_id = "second";
  EXPECT_EQ(Open(options)->found()->generation, Generation(6));
}

TEST_F(EtcdJournalTest, ThatWasTakenWithoutHearingOfItIsTaken) {
  data_.HideNextSuccess();
  EXPECT_TRUE(Open()->Write(SampleRecord()).ok());
}

TEST_F(EtcdJournalTest, WhatCannotBeWrittenIsTold) {
  const auto journal = Open();
  data_.RefuseWrites(true);
  EXPECT_THAT(std::string(journal->Write(SampleRecord()).message()), HasSubstr("no leader"));
  data_.RefuseWrites(false);
  EXPECT_TRUE(journal->Write(SampleRecord()).ok());
  etcd_.Shutdown();
  EXPECT_TRUE(absl::IsUnavailable(journal->Write(SampleRecord())));
  EXPECT_TRUE(absl::IsUnavailable(journal->Confirm()));
}

TEST_F(EtcdJournalTest, IsOfOneJob) {
  { ASSERT_TRUE(Open()->Write(SampleRecord()).ok()); }
  EtcdJournal::Options options = OptionsOf("second");
  options.job.max_restarts = 9;
  EXPECT_THAT(WhyNot(std::move(options)), HasSubstr("--max-restarts 9"));
}

TEST_F(EtcdJournalTest, ThatIsSpoiledIsRefused) {
  for (const char* text : {"fsdprun journal 1\nnothing", "fsdprun journal in parts a 3",
                           "fsdprun journal in parts z 1", "fsdprun journal in parts a 100000",
                           "fsdprun journal in parts"}) {
    data_.Put(absl::StrCat(kKey, "/record"), text);
    EXPECT_THAT(WhyNot(OptionsOf("x")),
                AllOf(HasSubstr("cannot be used"),
                      HasSubstr("delete all keys that begin with /fsdprun/journal/run7/")))
        << text;
  }
}

TEST_F(EtcdJournalTest, LargeRecordsAreInParts) {
  EtcdJournal::Options options = OptionsOf("first");
  options.part_bytes = 100;
  {
    const auto journal = Open(options);
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(journal->Write(SampleRecord()).ok());
    }
  }
  const int parts = Parts();
  EXPECT_GT(parts, 3);
  // What one left behind that was killed in the middle of the next record.
  data_.Put(absl::StrCat(kKey, "/parts/a/0"), "half");
  options.holder_id = "second";
  {
    const auto journal = Open(options);
    ASSERT_TRUE(journal->found().has_value());
    EXPECT_EQ(journal->found()->world.members.size(), 2u);
    ASSERT_TRUE(journal->Write(SampleRecord()).ok());
    EXPECT_EQ(Parts(), parts);
  }
  options.holder_id = "third";
  options.part_bytes = 1u << 20;
  ASSERT_TRUE(Open(options)->Write(job::Record()).ok());
  EXPECT_EQ(Parts(), 0);
}

TEST_F(EtcdJournalTest, RecordOfTenThousandNodesFitsIntoRequests) {
  job::Record record = SampleRecord();
  const job::NodeRecord node = record.nodes[0];
  const job::WorldRecord::Member member = record.world.members[0];
  record.nodes.clear();
  record.world.members.clear();
  for (uint64_t i = 1; i <= 10'000; ++i) {
    record.nodes.push_back(node);
    record.nodes.back().info.incarnation = Incarnation(i);
    record.nodes.back().info.name = absl::StrCat("gpu-node-", i, ".cluster.example.org");
    record.world.members.push_back(member);
    record.world.members.back().incarnation = Incarnation(i);
  }
  { ASSERT_TRUE(Open()->Write(record).ok()); }
  RecordProperty("bytes", static_cast<int>(FileText(Encode(record, SampleJob())).size()));
  EXPECT_GE(Parts(), 1);
  EXPECT_EQ(Open("second")->found()->nodes.size(), 10'000u);
}

TEST_F(EtcdJournalTest, RecordThatIsTooLargeIsRefused) {
  EtcdJournal::Options options = OptionsOf("first");
  options.part_bytes = 2;
  const absl::Status status = Open(std::move(options))->Write(SampleRecord());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("more than the 200 that are kept in etcd"), HasSubstr("folder")));
  EXPECT_THAT(Parts(), 0);
}

}  // namespace
}  // namespace fsdprun
