#include "launcher/run/coordinator_host.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
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

TEST(CoordinatorHostTest, OnceSilentNothingIsSentOrToldNotEvenWhatFollowsFromThePresentStep) {
  EventLoop loop;
  CoordinatorHost::Options options;
  options.run_id = "run";
  CoordinatorHost* silenced = nullptr;
  int news = 0;
  CoordinatorHost::Hooks hooks;
  hooks.persist = [&](const job::Record& record) {
    if (record.generation == Generation(1)) {
      silenced->Silence();
    }
  };
  hooks.on_news = [&](const job::News&) { ++news; };
  CoordinatorHost host(loop, options, std::move(hooks));
  silenced = &host;
  int prepares = 0;
  CoordinatorLink::Callbacks callbacks;
  callbacks.on_message = [&](const ToAgent& message) {
    prepares += std::holds_alternative<PrepareGeneration>(message.message) ? 1 : 0;
  };
  host.local_link().SetCallbacks(std::move(callbacks));
  host.local_link().Open(/*patience=*/1);
  NodeInfo node;
  node.incarnation = Incarnation(1);
  host.local_link().Send(FromAgent{Incarnation(1), Generation(0), AgentJoined{node, {}, {}}});
  EXPECT_EQ(host.machine().generation(), Generation(1));
  const int told = news;
  host.local_link().Send(
      FromAgent{Incarnation(1), Generation(1), NodeFaulted{CauseKind::kPrepareFailed, "no disk"}});
  EXPECT_EQ(prepares, 0);
  EXPECT_EQ(news, told);
  EXPECT_EQ(host.machine().phase(), job::Phase::kPreparing);
}

/// A host that can be made unsure whether the job is its own, and its one agent.
class UnsureHostTest : public ::testing::Test {
 protected:
  UnsureHostTest() {
    CoordinatorHost::Options options;
    options.spec.max_restarts = 0;
    options.run_id = "run";
    options.sure_until = [this] {
      return std::exchange(unsure_once_, false) ? MonoTime{} : sure_until_;
    };
    CoordinatorHost::Hooks hooks;
    hooks.on_finish = [](const JobOutcome&) {};
    host_ = std::make_unique<CoordinatorHost>(loop_, options, std::move(hooks));
    CoordinatorLink::Callbacks callbacks;
    callbacks.on_up = [] {};
    callbacks.on_message = [this](const ToAgent& message) {
      heard_.emplace_back(Word(message.message));
      if (heard_.size() == stops_at_) {
        loop_.Stop();
      }
    };
    host_->local_link().SetCallbacks(std::move(callbacks));
    host_->local_link().Open(/*patience=*/1);
  }

  static std::string Word(const CoordinatorMessage& message) {
    return std::holds_alternative<AdmitAgent>(message)          ? "admit"
           : std::holds_alternative<PrepareGeneration>(message) ? "prepare"
           : std::holds_alternative<CommitGeneration>(message)  ? "commit"
           : std::holds_alternative<HeartbeatHeard>(message)    ? "heard"
           : std::holds_alternative<ReleaseAgent>(message)      ? "release"
                                                                : "another";
  }
  void Say(uint64_t generation, AgentMessage message) {
    host_->local_link().Send(FromAgent{Incarnation(1), Generation(generation), std::move(message)});
  }
  void Join() {
    NodeInfo node;
    node.incarnation = Incarnation(1);
    Say(0, AgentJoined{node, {}, {}});
  }
  void RunWorkers() {
    Join();
    Say(1, AgentPrepared{StoreEndpoint{"127.0.0.1", 7}});
    Say(1, AgentStarted{});
    ASSERT_EQ(host_->machine().phase(), job::Phase::kRunning);
    heard_.clear();
  }
  void RunUntilHeard(size_t count) {
    stops_at_ = count;
    loop_.Run();
  }

  EventLoop loop_;
  MonoTime sure_until_ = MonoTime::max();
  /// At the next look alone: as when a renewal is answered between two looks.
  bool unsure_once_ = false;
  size_t stops_at_ = 0;
  std::vector<std::string> heard_;
  std::unique_ptr<CoordinatorHost> host_;
};

TEST_F(UnsureHostTest, OrdersNothingBeforeItIsSureAgainAndThenEverythingInOrder) {
  sure_until_ = MonoTime{};
  Join();
  EXPECT_EQ(host_->machine().generation(), Generation(1));
  EXPECT_THAT(heard_, ::testing::IsEmpty());
  sure_until_ = MonoTime::max();
  RunUntilHeard(2);
  EXPECT_THAT(heard_, ::testing::ElementsAre("admit", "prepare"));
  Say(1, AgentPrepared{StoreEndpoint{"127.0.0.1", 7}});  // Nothing is held back any more.
  EXPECT_THAT(heard_, ::testing::ElementsAre("admit", "prepare", "commit"));
}

TEST_F(UnsureHostTest, WhatComesLaterDoesNotOvertakeWhatIsHeldWhenItIsSureAgainBetweenTheTwo) {
  sure_until_ = MonoTime{};
  Join();
  sure_until_ = MonoTime::max();
  unsure_once_ = true;
  RunUntilHeard(2);
  EXPECT_THAT(heard_, ::testing::ElementsAre("admit", "prepare"));
}

TEST_F(UnsureHostTest, WhatItHoldsBackIsNotSentOnceItIsSilent) {
  sure_until_ = MonoTime{};
  Join();
  host_->Silence();
  sure_until_ = MonoTime::max();
  loop_.At(MonoNow() + std::chrono::milliseconds(300), [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_THAT(heard_, ::testing::IsEmpty());
}

TEST_F(UnsureHostTest, StillTellsThatItHearsBeatsSoThatWorkersRunOn) {
  RunWorkers();
  sure_until_ = MonoTime{};
  Say(1, AgentHeartbeat{.progress = {}, .asks = true});
  EXPECT_THAT(heard_, ::testing::ElementsAre("heard"));
}

TEST_F(UnsureHostTest, ReleasesNodesAllOfWhoseWorkersHaveEndedWell) {
  RunWorkers();
  sure_until_ = MonoTime{};
  Say(1, WorkerExited{WorkerExit{}, {}});
  EXPECT_TRUE(host_->machine().outcome().has_value());
  EXPECT_THAT(heard_, ::testing::ElementsAre("release"));
}

TEST_F(UnsureHostTest, WhatIsHeldBackDoesNotKeepBackWhatIsSafe) {
  sure_until_ = MonoTime{};
  Join();
  Say(0, AgentHeartbeat{.progress = {}, .asks = true});
  EXPECT_THAT(heard_, ::testing::ElementsAre("heard"));
}

TEST_F(UnsureHostTest, DoesNotReleaseNodesOfAJobThatHasFailed) {
  RunWorkers();
  sure_until_ = MonoTime{};
  Say(1, NodeFaulted{CauseKind::kSpawnFailed, "no memory"});
  Say(1, WorkersStopped{});
  EXPECT_TRUE(host_->machine().outcome().has_value());
  EXPECT_THAT(heard_, ::testing::IsEmpty());
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
