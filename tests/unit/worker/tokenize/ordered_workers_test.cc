#include "worker/tokenize/ordered_workers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <stdexcept>

namespace fsdprun::worker {
namespace {

TEST(OrderedWorkersTest, ResultsComeInTheOrderOfTheInputs) {
  OrderedWorkers<int, int> workers(4, [](int& input) {
    // The first takes longest.
    int sum = 0;
    for (int i = 0; i < (100 - input) * 1000; ++i) {
      sum = (sum + i) % 7919;
    }
    return input * input + (sum < 0 ? 1 : 0);
  });
  for (int i = 0; i < 100; ++i) {
    workers.Submit(i);
  }
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(workers.Take(), i * i);
  }
  EXPECT_EQ(workers.pending(), 0U);
}

TEST(OrderedWorkersTest, WhoWaitsForAResultCanLookUpMeanwhile) {
  std::promise<void> may_end;
  OrderedWorkers<int, int> workers(1, [&](int& input) {
    may_end.get_future().wait();
    return input;
  });
  workers.Submit(5);
  EXPECT_FALSE(workers.Await(std::chrono::milliseconds(1)));
  may_end.set_value();
  EXPECT_TRUE(workers.Await(std::chrono::minutes(2)));
  EXPECT_EQ(workers.Take(), 5);
}

TEST(OrderedWorkersTest, AFailureComesWithItsInputAndTheRestIsDropped) {
  std::atomic<int> done = 0;
  {
    OrderedWorkers<int, int> workers(2, [&](int& input) {
      ++done;
      if (input == 1) {
        throw std::runtime_error("one");
      }
      return input;
    });
    for (int i = 0; i < 3; ++i) {
      workers.Submit(i);
    }
    EXPECT_EQ(workers.Take(), 0);
    EXPECT_THAT([&] { workers.Take(); }, testing::ThrowsMessage<std::runtime_error>("one"));
    EXPECT_EQ(workers.Take(), 2);
    EXPECT_EQ(done, 3);
  }
}

}  // namespace
}  // namespace fsdprun::worker
