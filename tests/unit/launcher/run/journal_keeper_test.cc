#include "launcher/run/journal_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <string>
#include <vector>

#include "base/mutex.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A disk that is told what to do; shared with the thread that writes.
struct FakeDisk {
  absl::Status Write(const job::Record& record) {
    if (std::shared_future<void> gate = Gate(); gate.valid()) {
      gate.wait();
    }
    MutexLock lock(mu);
    absl::Status status = answer;
    if (status.ok()) {
      written.push_back(record.generation.value());
    }
    return status;
  }
  std::shared_future<void> Gate() {
    MutexLock lock(mu);
    return gate;
  }
  std::vector<uint64_t> Written() {
    MutexLock lock(mu);
    return written;
  }
  void Answer(absl::Status status) {
    MutexLock lock(mu);
    answer = std::move(status);
  }

  Mutex mu;
  absl::Status answer ABSL_GUARDED_BY(mu);
  std::vector<uint64_t> written ABSL_GUARDED_BY(mu);
  std::shared_future<void> gate ABSL_GUARDED_BY(mu);
};

class JournalKeeperTest : public ::testing::Test {
 protected:
  JournalKeeper& Make(Duration patience, Duration retry_pause) {
    keeper_ = std::make_unique<JournalKeeper>(
        loop_,
        JournalKeeper::Options{
            .write = [disk = disk_](const job::Record& record) { return disk->Write(record); },
            .tell =
                [this](const std::string& text) {
                  told_.push_back(text);
                  if (text.find("kept again") != std::string::npos) {
                    loop_.Stop();
                  }
                },
            .on_taken = [this](const absl::Status& why) { taken_.push_back(why); },
            .patience = patience,
            .retry_pause = retry_pause});
    return *keeper_;
  }
  static job::Record Record(uint64_t generation) {
    job::Record record;
    record.generation = Generation(generation);
    return record;
  }

  EventLoop loop_;
  const std::shared_ptr<FakeDisk> disk_ = std::make_shared<FakeDisk>();
  std::vector<std::string> told_;
  std::vector<absl::Status> taken_;
  std::unique_ptr<JournalKeeper> keeper_;
};

constexpr std::chrono::hours kLong{1};
constexpr std::chrono::milliseconds kShort{1};

TEST_F(JournalKeeperTest, RecordIsWrittenWhenKeepReturns) {
  JournalKeeper& keeper = Make(kLong, kLong);
  keeper.Keep(Record(1));
  EXPECT_THAT(disk_->Written(), ElementsAre(1));
  keeper.Keep(Record(2));
  EXPECT_THAT(disk_->Written(), ElementsAre(1, 2));
  EXPECT_TRUE(keeper.problem().ok());
  EXPECT_THAT(told_, IsEmpty());
}

TEST_F(JournalKeeperTest, FullDiskIsToldOnceAndMadeGood) {
  JournalKeeper& keeper = Make(kLong, kShort);
  disk_->Answer(absl::UnavailableError("--journal: no space"));
  keeper.Keep(Record(1));
  keeper.Keep(Record(2));
  EXPECT_FALSE(keeper.problem().ok());
  EXPECT_THAT(told_, ElementsAre(HasSubstr("--journal: no space; the job goes on")));
  disk_->Answer(absl::OkStatus());
  loop_.Run();  // Until it is told that it is kept again.
  EXPECT_THAT(told_.back(), HasSubstr("kept again"));
  EXPECT_THAT(disk_->Written(), ElementsAre(2));
  EXPECT_TRUE(keeper.problem().ok());
}

TEST_F(JournalKeeperTest, DiskThatHangsDoesNotHoldUpTheJob) {
  std::promise<void> resume;
  {
    MutexLock lock(disk_->mu);
    disk_->gate = resume.get_future().share();
  }
  JournalKeeper& keeper = Make(kShort, kLong);
  keeper.Keep(Record(1));
  EXPECT_THAT(told_, ElementsAre(HasSubstr("did not answer")));
  keeper.Keep(Record(2));
  keeper.Keep(Record(3));
  EXPECT_EQ(told_.size(), 1u);
  EXPECT_THAT(disk_->Written(), IsEmpty());
  resume.set_value();
  loop_.Run();
  EXPECT_THAT(disk_->Written(), ElementsAre(1, 3));  // The newest is all that counts.
  EXPECT_TRUE(keeper.problem().ok());
}

TEST_F(JournalKeeperTest, OnceItIsAnothersNothingIsWrittenOrTriedAgain) {
  JournalKeeper& keeper = Make(kLong, kShort);
  const absl::Status taken = absl::AbortedError("another has the job");
  disk_->Answer(taken);
  keeper.Keep(Record(1));
  EXPECT_THAT(taken_, ElementsAre(taken));
  EXPECT_EQ(keeper.problem(), taken);
  disk_->Answer(absl::OkStatus());
  keeper.Keep(Record(2));
  loop_.At(MonoNow() + std::chrono::milliseconds(20), [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_THAT(disk_->Written(), IsEmpty());
  EXPECT_THAT(taken_, ElementsAre(taken));
  EXPECT_THAT(told_, IsEmpty());
}

}  // namespace
}  // namespace fsdprun
