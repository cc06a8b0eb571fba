#include "base/repeater.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>

namespace fsdprun {
namespace {

TEST(RepeaterTest, CallsAgainAndAgain) {
  std::atomic<int> calls{0};
  std::promise<void> third;
  const Repeater repeater(std::chrono::milliseconds(1), [&] {
    if (++calls == 3) {
      third.set_value();
    }
  });
  third.get_future().wait();
}

TEST(RepeaterTest, AnEndDoesNotWaitForTheInterval) {
  const Repeater repeater(std::chrono::hours(1), [] { ADD_FAILURE(); });
}

}  // namespace
}  // namespace fsdprun
