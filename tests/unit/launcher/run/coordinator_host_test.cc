#include "launcher/run/coordinator_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/log.h"

namespace fsdprun {
namespace {

/// The launch ids of the assignments that one host orders for two generations of its local agent.
std::vector<std::string> LaunchIdsOfTwoGenerations() {
  EventLoop loop;
  CoordinatorHost::Options options;
  options.spec.max_restarts = 1;
  options.run_id = "run";
  CoordinatorHost host(loop, options, {});
  std::vector<std::string> ids;
  CoordinatorLink::Callbacks callbacks;
  callbacks.on_up = [] {};
  callbacks.on_lost = [](const LinkLoss&) {};
  callbacks.on_message = [&ids](const ToAgent& message) {
    if (const auto* prepare = std::get_if<PrepareGeneration>(&message.message)) {
      ids.push_back(prepare->assignment.launch_id);
    }
  };
  CoordinatorLink& link = host.local_link();
  link.SetCallbacks(std::move(callbacks));
  link.Open(/*patience=*/1);
  const auto say = [&link](uint64_t generation, AgentMessage message) {
    link.Send(FromAgent{Incarnation(1), Generation(generation), std::move(message)});
  };
  NodeInfo node;
  node.incarnation = Incarnation(1);
  say(0, AgentJoined{node, Generation(0), {}});
  say(1, NodeFaulted{CauseKind::kPrepareFailed, "no disk"});
  say(1, WorkersStopped{});
  return ids;
}

TEST(CoordinatorHostTest, LaunchIdIsOneForAllGenerationsAndAnotherForTheNextLaunch) {
  const std::vector<std::string> first = LaunchIdsOfTwoGenerations();
  const std::vector<std::string> second = LaunchIdsOfTwoGenerations();
  ASSERT_EQ(first.size(), 2u);
  ASSERT_EQ(second.size(), 2u);
  EXPECT_THAT(first[0], ::testing::MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(first[0].size(), 8u);
  EXPECT_EQ(first[0], first[1]);
  EXPECT_EQ(second[0], second[1]);
  EXPECT_NE(first[0], second[0]);
}

std::vector<std::string>& Warnings() {
  static std::vector<std::string> warnings;
  return warnings;
}

TEST(CoordinatorHostTest, OnlyALongStallIsWorthAWarning) {
  SetLogSink([](LogLevel, absl::string_view line) { Warnings().emplace_back(line); });
  EventLoop loop;
  CoordinatorHost::Options options;
  options.spec.join_timeout = std::chrono::milliseconds(50);
  options.run_id = "run";
  CoordinatorHost host(loop, options, {});
  CoordinatorLink::Callbacks callbacks;
  callbacks.on_message = [](const ToAgent&) {};
  host.local_link().SetCallbacks(std::move(callbacks));
  host.local_link().Open(/*patience=*/1);
  ASSERT_TRUE(host.Start().ok());
  const auto stall = [&host](Duration duration) {
    std::this_thread::sleep_for(duration);
    host.local_link().Send(FromAgent{Incarnation(7), Generation(0), AgentHeartbeat{}});
  };
  stall(std::chrono::milliseconds(800));
  EXPECT_THAT(Warnings(), ::testing::IsEmpty());
  stall(std::chrono::milliseconds(2700));
  EXPECT_THAT(Warnings(), ::testing::ElementsAre(::testing::HasSubstr("did not run for")));
  SetLogSink([](LogLevel, absl::string_view line) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
  });
}

}  // namespace
}  // namespace fsdprun
