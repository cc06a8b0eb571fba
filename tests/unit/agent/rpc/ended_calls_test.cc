#include "agent/rpc/ended_calls.h"

#include <gtest/gtest.h>

#include <memory>

namespace fsdprun {
namespace {

TEST(EndedCallsTest, ACallIsKeptUntilItIsDone) {
  auto call = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = call;
  bool is_done = false;
  KeepUntilDone(std::move(call), [&is_done] { return is_done; });
  const auto keep_another = [] { KeepUntilDone(std::make_shared<int>(2), [] { return true; }); };
  keep_another();
  EXPECT_FALSE(watched.expired());
  is_done = true;
  keep_another();
  EXPECT_TRUE(watched.expired());
}

TEST(EndedCallsTest, WhatACallEndsMayKeepAnother) {
  bool has_ended = false;
  std::shared_ptr<void> call(&has_ended, [](bool* ended) {
    *ended = true;
    KeepUntilDone(std::make_shared<int>(1), [] { return true; });
  });
  KeepUntilDone(std::move(call), [] { return true; });
  KeepUntilDone(std::make_shared<int>(2), [] { return true; });
  EXPECT_TRUE(has_ended);
}

}  // namespace
}  // namespace fsdprun
