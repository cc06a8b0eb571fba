#include "agent/process/log_queue.h"

#include <gtest/gtest.h>

#include <string>

namespace fsdprun::keeper {
namespace {

constexpr int64_t kSecondNs = 1'000'000'000;

TEST(LogQueueTest, KeepsRequestsInOrderUntilTheyAreAnswered) {
  LogQueue queue;
  EXPECT_TRUE(queue.is_empty());
  EXPECT_TRUE(queue.NextUnsent().empty());
  queue.Add({.file = 1, .op = LogOp::kOpen}, "/log");
  queue.Add({.file = 1, .op = LogOp::kWrite}, "hello");
  EXPECT_EQ(queue.NextUnsent().size(), sizeof(LogRequest) + 4);
  queue.MarkSent();
  EXPECT_EQ(queue.NextUnsent().substr(sizeof(LogRequest)), "hello");
  queue.MarkSent();
  EXPECT_TRUE(queue.NextUnsent().empty());
  EXPECT_EQ(queue.Front().payload, "/log");
  queue.Pop();
  EXPECT_EQ(queue.Front().request.op, LogOp::kWrite);
  EXPECT_EQ(queue.Front().payload, "hello");
  queue.Pop();
  EXPECT_TRUE(queue.is_empty());
}

TEST(LogQueueTest, NothingIsLostWhileManyMegabytesPass) {
  LogQueue queue;
  const std::string block(30'000, 'x');
  uint64_t added = 0;
  uint64_t answered = 0;
  for (int round = 0; round < 1000; ++round) {
    while (queue.HasRoom(block.size())) {
      queue.Add({.file = added++, .op = LogOp::kWrite}, block);
      if (added % 3 != 0) {
        queue.MarkSent();
      }
    }
    for (int i = 0; i < 7; ++i) {
      ASSERT_EQ(queue.Front().request.file, answered++);
      ASSERT_EQ(queue.Front().payload, block);
      queue.Pop();
    }
  }
}

TEST(LogQueueTest, IsBoundedForOutputOnly) {
  LogQueue queue;
  EXPECT_TRUE(queue.HasRoom(LogQueue::kMaxBytes - sizeof(LogRequest)));
  EXPECT_FALSE(queue.HasRoom(LogQueue::kMaxBytes));
  queue.Add({.file = 1, .op = LogOp::kWrite},
            std::string(LogQueue::kMaxBytes - sizeof(LogRequest), 'x'));
  EXPECT_FALSE(queue.HasRoom(0));
  queue.Add({.file = 1, .op = LogOp::kClose}, "");
  queue.Pop();
  EXPECT_EQ(queue.Front().request.op, LogOp::kClose);
  EXPECT_TRUE(queue.HasRoom(1000));
}

TEST(LogQueueTest, AWriterHangsOnlyWhileSomebodyWaitsForIt) {
  LogQueue queue;
  queue.Observe(/*is_awaited=*/true, 0);
  EXPECT_EQ(queue.DeadlineNs(), LogQueue::kNever);  // It has nothing to answer.
  queue.Add({.file = 1, .op = LogOp::kWrite}, "x");
  queue.Observe(/*is_awaited=*/false, 10 * kSecondNs);
  EXPECT_EQ(queue.DeadlineNs(), LogQueue::kNever);  // A slow disk is none of anybody's business.
  queue.Observe(/*is_awaited=*/true, 20 * kSecondNs);
  queue.Observe(/*is_awaited=*/true, 20 * kSecondNs + 5);
  EXPECT_EQ(queue.DeadlineNs(), 21 * kSecondNs);
}

TEST(LogQueueTest, AFullQueueMakesWorkersWait) {
  LogQueue queue;
  while (queue.HasRoom(1000)) {
    queue.Add({.file = 1, .op = LogOp::kWrite}, std::string(1000, 'x'));
  }
  queue.Observe(/*is_awaited=*/false, kSecondNs);
  EXPECT_EQ(queue.DeadlineNs(), 2 * kSecondNs);
}

TEST(LogQueueTest, EveryAnswerAndAnOverloadedMachineGiveTimeAnew) {
  LogQueue queue;
  queue.Add({.file = 1, .op = LogOp::kOpen}, "a");
  queue.Add({.file = 2, .op = LogOp::kOpen}, "b");
  queue.Observe(/*is_awaited=*/true, 0);
  queue.Pop();
  queue.Observe(/*is_awaited=*/true, kSecondNs / 2);
  EXPECT_EQ(queue.DeadlineNs(), kSecondNs + kSecondNs / 2);
  queue.Extend(kSecondNs);
  EXPECT_EQ(queue.DeadlineNs(), 2 * kSecondNs);
}

}  // namespace
}  // namespace fsdprun::keeper
