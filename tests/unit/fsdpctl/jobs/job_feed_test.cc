#include "fsdpctl/jobs/job_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;

v1::ControlAnswer Numbered(int64_t number) {
  v1::ControlAnswer answer;
  answer.mutable_status()->set_age_ns(number);
  return answer;
}

class JobFeedTest : public ::testing::Test {
 protected:
  /// The one call tells `answers` answers, and then ends.
  std::unique_ptr<JobFeed> Feed(int answers) {
    return std::make_unique<JobFeed>(
        loop_, JobFeed::Callbacks{.on_begin = [this, answers] { return Telling(answers); },
                                  .on_answer =
                                      [this](const v1::ControlAnswer& answer) {
                                        seen_.push_back(answer.status().age_ns());
                                        handed_at_seen_.push_back(handed_);
                                      },
                                  .on_ended =
                                      [this](const absl::Status& status) {
                                        ended_with_ = status;
                                        loop_.Stop();
                                        return false;
                                      }});
  }

  JobFeed::Ask Telling(int answers) {
    return [this, answers](const std::function<void(const v1::ControlAnswer&)>& on_answer,
                           CallStop* stop) {
      for (int i = 0; i < answers && !stop->is_stopped(); ++i) {
        ++handed_;
        on_answer(Numbered(i));
      }
      return stop->is_stopped() ? absl::CancelledError("stopped") : absl::OkStatus();
    };
  }

  EventLoop loop_;
  std::vector<int64_t> seen_;
  std::vector<int> handed_at_seen_;
  std::atomic<int> handed_{0};
  absl::Status ended_with_ = absl::UnknownError("it has not ended");
};

TEST_F(JobFeedTest, EachAnswerIsSeenBeforeTheNextOneIsRead) {
  const auto feed = Feed(50);
  loop_.Run();
  ASSERT_EQ(seen_.size(), 50U);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(seen_[static_cast<size_t>(i)], i);
    EXPECT_EQ(handed_at_seen_[static_cast<size_t>(i)], i + 1);
  }
  EXPECT_TRUE(ended_with_.ok());
}

TEST_F(JobFeedTest, NothingPilesUpWhileTheLoopIsBusy) {
  const auto feed = Feed(1000);
  while (handed_ == 0) {
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(milliseconds(50));  // That nothing happens can only be waited for.
  EXPECT_EQ(handed_, 1);
}

TEST_F(JobFeedTest, ACallIsEndedWhoseAnswerNobodyTakes) {
  auto feed = Feed(1000);
  while (handed_ == 0) {
    std::this_thread::yield();
  }
  feed->Again();
  loop_.Run();
  EXPECT_TRUE(absl::IsCancelled(ended_with_));
  EXPECT_EQ(handed_, 1);
  feed = Feed(1000);
  feed.reset();  // Returns although the loop does not run.
}

}  // namespace
}  // namespace fsdprun
