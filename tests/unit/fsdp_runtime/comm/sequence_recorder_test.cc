// Ranks that wait for each other on a device, where nothing is compared. No device is needed: a
// stand-in launches operations that never end.

#include "fsdp_runtime/src/comm/sequence_recorder.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "fsdp_runtime/src/comm/store_agreement.h"
#include "tests/unit/fsdp_runtime/comm/memory_store.h"
#include "tests/unit/fsdp_runtime/comm/ranks.h"

namespace fsdp {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

/// A device of which no operation ends until the group is aborted.
class StuckDevice : public Collectives {
 public:
  StuckDevice(int64_t rank, int64_t size) : rank_(rank), size_(size) {}
  int64_t rank() const override { return rank_; }
  int64_t size() const override { return size_; }
  std::string name() const override { return "stuck"; }
  WorkPtr all_gather_into(at::Tensor, at::Tensor, Issue) override { return launch(); }
  WorkPtr reduce_scatter_into(at::Tensor, at::Tensor, ReduceOp, Issue) override { return launch(); }
  WorkPtr all_reduce(at::Tensor, ReduceOp, Issue) override { return launch(); }
  WorkPtr broadcast(at::Tensor, int64_t, Issue) override { return launch(); }
  void barrier() override { launch()->wait(); }
  void abort(const std::string& reason) override {
    std::lock_guard lock(state_->mu);
    state_->reason = reason;
    state_->changed.notify_all();
  }

 private:
  struct State {
    std::mutex mu;
    std::condition_variable changed;
    std::string reason;
  };
  class Launched : public Work {
   public:
    explicit Launched(std::shared_ptr<State> state) : state_(std::move(state)) {}
    /// As the host waits for a device.
    void wait() override {
      std::unique_lock lock(state_->mu);
      state_->changed.wait(lock, [&] { return !state_->reason.empty(); });
      TORCH_CHECK(false, state_->reason);
    }
    bool is_done() override {
      std::lock_guard lock(state_->mu);
      return !state_->reason.empty();
    }

   private:
    const std::shared_ptr<State> state_;
  };
  WorkPtr launch() { return std::make_shared<Launched>(state_); }

  const int64_t rank_;
  const int64_t size_;
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

constexpr SequenceRecorder::Patience kContents{milliseconds(5), minutes(10)};
constexpr SequenceRecorder::Patience kCounts{milliseconds(5), milliseconds(300)};

std::vector<std::string> run(int64_t size, SequenceRecorder::Patience patience,
                             const testing::Body& body) {
  const auto store = testing::serve_store();
  const uint16_t port = store->getPort();
  return testing::run_threads(
      size,
      [&](int64_t rank) {
        AgreementOptions options;
        options.patience = patience;
        options.membership = std::make_shared<Membership>(rank);
        return agree_through_store(std::make_shared<StuckDevice>(rank, size),
                                   std::make_shared<StoreClient>("127.0.0.1", port, minutes(10)),
                                   "agreement", options);
      },
      body);
}

WorkPtr gather(Collectives& group, const std::string& purpose) {
  return group.all_gather_into(at::empty({group.size()}), at::ones({1}), {Lane::kGather, purpose});
}
WorkPtr scatter(Collectives& group, const std::string& purpose) {
  return group.reduce_scatter_into(at::empty({1}), at::ones({group.size()}), ReduceOp::kSum,
                                   {Lane::kReduce, purpose});
}

TEST(SequenceRecorderTest, HostsThatWaitForTheDeviceHearWhichOperationDiffers) {
  const auto errors = run(3, kContents, [](Collectives& group) {
    gather(group, "unit a");
    gather(group, group.rank() == 2 ? "unit c" : "unit b")->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("ranks 0 and 1 issued all_gather #2 for unit b"),
                                 HasSubstr("but rank 2 issued all_gather #2 for unit c"))));
}

// Rank 0 waits for the device in the middle of a forward, rank 1 has come to the agreement.
TEST(SequenceRecorderTest, WhoWaitsForTheAgreementHearsOfItToo) {
  const auto errors = run(2, kContents, [](Collectives& group) {
    const WorkPtr last = gather(group, group.rank() == 0 ? "unit a" : "unit b");
    if (group.rank() == 0) {
      last->wait();
    } else {
      group.agree(0)->wait();
    }
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("rank 0 issued all_gather #1 for unit a"),
                                 HasSubstr("but rank 1 issued all_gather #1 for unit b"))));
}

TEST(SequenceRecorderTest, RanksThatHaveIssuedTooFewAreToldWhenNothingMovesAnyMore) {
  const auto errors = run(2, kCounts, [](Collectives& group) {
    (group.rank() == 0 ? gather(group, "unit a") : scatter(group, "unit b"))->wait();
  });
  EXPECT_THAT(errors, Each(AllOf(HasSubstr("all ranks wait"),
                                 HasSubstr("rank 0 has issued 1 operations on lane 0, the last "
                                           "all_gather #1 for unit a"),
                                 HasSubstr("rank 1 has issued 0 operations on lane 0"))));
}

// What all ranks have issued is much in a large world, and the store one process: not each of them
// reads it.
TEST(SequenceRecorderTest, RankZeroAloneCompares) {
  const auto store = testing::serve_store();
  const auto client = [&] {
    return std::make_shared<StoreClient>("127.0.0.1", store->getPort(), minutes(10));
  };
  std::promise<std::string> told;
  SequenceRecorder recorder(client(), "agreement", {1, 2}, kContents,
                            [&](const std::string& difference) { told.set_value(difference); });
  recorder.add(Lane::kGather, {.kind = shm::Kind::kAllGather});
  const SequenceRecorder::Waiting waiting(recorder, nullptr);
  StoreClient rank0("127.0.0.1", store->getPort(), minutes(10));
  rank0.set("agreement/waits/0", "0 0 0 what only rank 0 reads");
  rank0.wait({"agreement/waits/1"}, rank0.deadline());
  std::future<std::string> heard = told.get_future();
  EXPECT_EQ(heard.wait_for(milliseconds(100)), std::future_status::timeout);
  rank0.set("agreement/waits/difference", "rank 1 has issued another one");
  EXPECT_EQ(heard.get(), "rank 1 has issued another one");
}

// Its thread asks the store when the group is to end. The store's timeout is the group's.
TEST(SequenceRecorderTest, AStoreThatAnswersNoMoreDoesNotHoldUpTheEndOfTheGroup) {
  testing::MemoryStore store;
  AgreementOptions options;
  options.patience = {milliseconds(1), minutes(10), milliseconds(20)};
  auto group = agree_through_store(
      std::make_shared<StuckDevice>(1, 2),
      std::make_shared<StoreClient>("127.0.0.1", store.port(), std::chrono::hours(1)), "agreement",
      options);
  store.fall_silent();
  gather(*group, "unit a");
  store.wait_for_unanswered();
  group.reset();
}

TEST(SequenceRecorderTest, TheStoreHasAsLongAsTheGroupButNotForEver) {
  EXPECT_EQ(SequenceRecorder::patience_for(milliseconds(100)).answer, milliseconds(100));
  EXPECT_EQ(SequenceRecorder::patience_for(minutes(30)).answer, std::chrono::seconds(20));
}

}  // namespace
}  // namespace fsdp
