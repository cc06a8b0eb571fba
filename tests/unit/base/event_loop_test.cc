#include "base/event_loop.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <thread>
#include <vector>

namespace fsdprun {
namespace {

using namespace std::chrono_literals;

TEST(EventLoopTest, PostedClosuresRunInOrderOnTheLoopThread) {
  EventLoop loop;
  std::vector<int> order;
  const auto here = std::this_thread::get_id();
  loop.Post([&] { order.push_back(std::this_thread::get_id() == here ? 1 : -1); });
  loop.Post([&] {
    order.push_back(2);
    loop.Post([&] {
      order.push_back(3);
      loop.Stop();
    });
  });
  loop.Run();
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoopTest, ManyThreadsMayPost) {
  EventLoop loop;
  constexpr int kThreads = 4;
  constexpr int kEach = 500;
  int count = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach; ++i) {
        loop.Post([&] {
          if (++count == kThreads * kEach) {
            loop.Stop();
          }
        });
      }
    });
  }
  loop.Run();
  for (auto& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(count, kThreads * kEach);
}

TEST(EventLoopTest, TimersRunInOrderOfTheirTimeAndCanBeCancelled) {
  EventLoop loop;
  std::vector<int> order;
  const MonoTime now = MonoNow();
  loop.At(now + 4ms, [&] {
    order.push_back(3);
    loop.Stop();
  });
  loop.At(now + 2ms, [&] { order.push_back(2); });
  const auto cancelled = loop.At(now + 1ms, [&] { order.push_back(99); });
  loop.At(now, [&] {
    order.push_back(1);
    loop.Cancel(cancelled);
  });
  loop.Run();
  loop.Cancel(cancelled);
  EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(EventLoopTest, WhatWasPostedBeforeATimerIsDueRunsBeforeIt) {
  EventLoop loop;
  std::vector<int> order;
  loop.At(MonoNow() + 1ms, [&] {
    std::this_thread::sleep_for(20ms);  // The loop is late for the next timer.
    order.push_back(1);
  });
  loop.At(MonoNow() + 10ms, [&] {
    order.push_back(3);
    loop.Stop();
  });
  std::thread poster([&] {
    std::this_thread::sleep_for(5ms);
    loop.Post([&] { order.push_back(2); });
  });
  loop.Run();
  poster.join();
  EXPECT_EQ(order.back(), 3);
  EXPECT_EQ(order.size(), 3u);
}

TEST(EventLoopTest, AnUnwatchedDescriptorOfTheSameBatchIsNotCalled) {
  EventLoop loop;
  int first[2];
  int second[2];
  ASSERT_EQ(::pipe2(first, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(second, O_CLOEXEC), 0);
  int calls = 0;
  const auto react = [&](uint32_t) {
    ++calls;
    loop.Unwatch(first[0]);
    loop.Unwatch(second[0]);
    loop.Post([&] { loop.Stop(); });
  };
  loop.Watch(first[0], EPOLLIN, react);
  loop.Watch(second[0], EPOLLIN, react);
  ASSERT_EQ(::write(first[1], "x", 1), 1);
  ASSERT_EQ(::write(second[1], "x", 1), 1);
  loop.Run();
  EXPECT_EQ(calls, 1);
  for (const int fd : {first[0], first[1], second[0], second[1]}) {
    ::close(fd);
  }
}

// The events of a batch are fetched together: the second one is about a descriptor whose number
// has been reused in the meantime.
TEST(EventLoopTest, AnEventOfAClosedDescriptorDoesNotReachTheNextOfThatNumber) {
  EventLoop loop;
  int first[2];
  int second[2];
  ASSERT_EQ(::pipe2(first, O_CLOEXEC), 0);
  ASSERT_EQ(::pipe2(second, O_CLOEXEC), 0);
  int old_calls = 0;
  int new_calls = 0;
  int keep = -1;
  const auto replace = [&](int other) {
    ++old_calls;
    loop.Unwatch(other);
    int fresh[2];
    ASSERT_EQ(::pipe2(fresh, O_CLOEXEC), 0);
    ASSERT_EQ(::dup3(fresh[0], other, O_CLOEXEC), other);
    loop.Watch(other, EPOLLIN, [&new_calls](uint32_t) { ++new_calls; });
    ::close(fresh[0]);
    keep = fresh[1];
    loop.Post([&] { loop.Stop(); });  // after this batch
  };
  loop.Watch(first[0], EPOLLIN, [&](uint32_t) {
    loop.Unwatch(first[0]);
    replace(second[0]);
  });
  loop.Watch(second[0], EPOLLIN, [&](uint32_t) {
    loop.Unwatch(second[0]);
    replace(first[0]);
  });
  ASSERT_EQ(::write(first[1], "x", 1), 1);
  ASSERT_EQ(::write(second[1], "x", 1), 1);
  loop.Run();
  EXPECT_EQ(old_calls, 1);
  EXPECT_EQ(new_calls, 0);
  for (const int fd : {first[0], first[1], second[0], second[1], keep}) {
    ::close(fd);
  }
}

TEST(EventLoopTest, RewatchChangesTheEvents) {
  EventLoop loop;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  bool was_writable = false;
  loop.Watch(ends[1], 0, [&](uint32_t events) {
    was_writable = (events & EPOLLOUT) != 0;
    loop.Stop();
  });
  loop.Post([&] { loop.Rewatch(ends[1], EPOLLOUT); });
  loop.Run();
  EXPECT_TRUE(was_writable);
  loop.Unwatch(ends[1]);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace fsdprun
