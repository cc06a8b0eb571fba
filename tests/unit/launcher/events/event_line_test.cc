#include "launcher/events/event_line.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace fsdprun {
namespace {

using std::chrono::milliseconds;

const EventSource kSource{"job-1", "node-a"};
constexpr int64_t kWhen = 1'767'225'600'123;  // 2026-01-01T00:00:00.123Z

/// What all events of this test begin with.
std::string Head(const std::string& from) {
  return R"({"v":1,"time":"2026-01-01T00:00:00.123Z","job":"job-1","node":"node-a","from":")" +
         from + R"(","event":)";
}

template <class News>
std::string JobEvent(News news) {
  const std::string line = FormatEvent(job::News(std::move(news)), kSource, kWhen);
  EXPECT_EQ(line.substr(0, Head("coordinator").size()), Head("coordinator"));
  return line.substr(Head("coordinator").size());
}

template <class News>
std::string NodeEvent(News news) {
  const std::string line = FormatEvent(node::News(std::move(news)), kSource, kWhen);
  EXPECT_EQ(line.substr(0, Head("agent").size()), Head("agent"));
  return line.substr(Head("agent").size());
}

WorkerExit KilledWorker() {
  WorkerExit exit;
  exit.rank = 5;
  exit.local_rank = 1;
  exit.pid = 77;
  exit.signal = 9;
  exit.last_step = 12;
  return exit;
}

TEST(EventLineTest, NodesOfTheJob) {
  NodeInfo node{Incarnation(7), "node-b", "10.0.0.2", 8};
  EXPECT_EQ(JobEvent(job::NodeJoined{node}),
            R"("node_joined","name":"node-b","address":"10.0.0.2","workers":8})");
  EXPECT_EQ(JobEvent(job::NodeLost{"node-b", "was silent for 3.0 s"}),
            R"("node_lost","name":"node-b","why":"was silent for 3.0 s"})");
}

TEST(EventLineTest, NodesThatKeepFailing) {
  job::QuarantinedNode node{{"node-b", "10.0.0.2"}, 3, job::WorldBreak::Worker{5, 0, 9}, "it died"};
  const std::string who = R"("name":"node-b","address":"10.0.0.2",)";
  EXPECT_EQ(
      JobEvent(job::NodeQuarantined{node, milliseconds(600'000), milliseconds(3'600'000),
                                    "it keeps failing"}),
      R"("node_quarantined",)" + who +
          R"("failures":3,"window_seconds":600.0,"quarantine_seconds":3600.0,"rank":5,"last":"it died",)"
          R"("why":"it keeps failing"})");
  node.worker.reset();
  EXPECT_EQ(
      JobEvent(job::NodeQuarantined{node, milliseconds(1500), milliseconds(9000), "so"}),
      R"("node_quarantined",)" + who +
          R"("failures":3,"window_seconds":1.5,"quarantine_seconds":9.0,"last":"it died","why":"so"})");
  EXPECT_EQ(JobEvent(job::QuarantineLifted{node, "so"}),
            R"("quarantine_lifted",)" + who + R"("why":"so"})");
  EXPECT_EQ(JobEvent(job::QuarantineWaived{node, "so"}),
            R"("quarantine_waived",)" + who + R"("why":"so"})");
}

TEST(EventLineTest, WhatAnOperatorChangesAboutTheNodes) {
  NodeInfo node;
  node.name = "node-b";
  node.address = "10.0.0.2";
  const std::string who = R"("name":"node-b","address":"10.0.0.2")";
  EXPECT_EQ(JobEvent(job::NodeDraining{node, 1}),
            R"("node_draining",)" + who + R"(,"group_rank":1})");
  EXPECT_EQ(JobEvent(job::NodeDrained{node}), R"("node_drained",)" + who + "}");
  EXPECT_EQ(
      JobEvent(job::JobScaled{{1, 3}, {2, 4}}),
      R"("job_scaled","min_nodes":1,"max_nodes":3,"min_nodes_before":2,"max_nodes_before":4})");
}

TEST(EventLineTest, TheLifeOfAWorld) {
  EXPECT_EQ(JobEvent(job::WorldFormed{Generation(3), 2, 16}),
            R"("world_formed","generation":3,"nodes":2,"workers":16})");
  EXPECT_EQ(JobEvent(job::WorldCommitted{Generation(3), {"10.0.0.1", 29500}}),
            R"("world_committed","generation":3,"store":"10.0.0.1:29500"})");
  EXPECT_EQ(JobEvent(job::WorldStopping{Generation(3), job::StopKind::kMembership, "n joins"}),
            R"("world_stopping","generation":3,"cause":"membership","why":"n joins"})");
  EXPECT_EQ(JobEvent(job::WorldStopped{Generation(3)}), R"("world_stopped","generation":3})");
}

TEST(EventLineTest, AFailureNamesItsNodeAndItsWorker) {
  Failure failure{CauseKind::kWorkerFailed, Generation(3),           "node-b", "10.0.0.2", 1,
                  KilledWorker(),           "rank 5 died of SIGKILL"};
  const std::string cause =
      R"("kind":"worker_failed","generation":3,"failed_node":"node-b","group_rank":1,)"
      R"("what":"rank 5 died of SIGKILL","worker":{"rank":5,"local_rank":1,"pid":77,)"
      R"("exit_code":-9,"last_step":12,"after_stop":false}})";
  EXPECT_EQ(JobEvent(job::FailureReported{failure}), R"("failure",)" + cause);

  JobOutcome outcome;
  outcome.kind = OutcomeKind::kFailed;
  outcome.exit_code = 1;
  outcome.restarts_used = 2;
  outcome.generation = Generation(3);
  outcome.reason = "no restarts left";
  outcome.failure = FailureReport{failure, {}, 0, 0};
  EXPECT_EQ(JobEvent(job::JobFinished{outcome}),
            R"("job_finished","result":"failed","exit_code":1,"restarts":2,"generation":3,)"
            R"("why":"no restarts left","root_cause":{)" +
                cause + "}");
}

TEST(EventLineTest, WhatTheWatchFinds) {
  const auto event = [](const watch::Finding& finding) {
    const std::string line = FormatEvent(finding, {"run7", "node-a"}, 0);
    return line.substr(line.find("\"event\":") + 8);
  };
  watch::HangFound hang{.id = 3, .kind = watch::HangKind::kStopped, .culprits = {{2, "b", 77}}};
  hang.culprit_count = 1;
  hang.lasted = hang.limit = milliseconds(8500);
  hang.what = "rank 2 is stopped";
  hang.action = "restart";
  EXPECT_EQ(event(hang),
            R"("hang","id":3,"kind":"stopped","culprits":[{"rank":2,"node":"b","pid":77}],)"
            R"("culprit_count":1,"lasted_seconds":8.5,"limit_seconds":8.5,"action":"restart",)"
            R"("what":"rank 2 is stopped"})");
  EXPECT_EQ(event(watch::HangReported{3, "hang-3.txt", {{{2, "b", 77}, "#0 f", ""}}}),
            R"("hang_report","id":3,"file":"hang-3.txt","stacks":[{"rank":2,"node":"b",)"
            R"("pid":77,"text":"#0 f"}]})");
  EXPECT_EQ(event(watch::HangEnded{3, milliseconds(500), "it goes on"}),
            R"("hang_ended","id":3,"after_seconds":0.5,"why":"it goes on"})");
  watch::SlowFound slow{.id = 4, .ranks = {{5, "b", 78}}, .rank_count = 1};
  slow.excess = 0.25;
  slow.step_time = milliseconds(250);
  slow.others_step_time = milliseconds(200);
  EXPECT_EQ(event(slow),
            R"("straggler","id":4,"in":"computing","ranks":[{"rank":5,"node":"b","pid":78}],)"
            R"("rank_count":1,"excess":0.25,"step_seconds":0.25,"others_step_seconds":0.2,)"
            R"("what":""})");
  EXPECT_EQ(event(watch::SlowEnded{4, "fast"}), R"("straggler_ended","id":4,"why":"fast"})");
}

TEST(EventLineTest, EveryCauseHasANameOfItsOwn) {
  std::vector<std::string> names;
  for (int i = 0; i <= static_cast<int>(CauseKind::kWorkerHung); ++i) {
    const std::string line = JobEvent(job::FailureReported{{static_cast<CauseKind>(i)}});
    EXPECT_EQ(line.find("\"kind\":\"?\""), std::string::npos) << line;
    for (const std::string& other : names) {
      EXPECT_NE(line, other);
    }
    names.push_back(line);
  }
}

TEST(EventLineTest, TheCoordinatorItself) {
  EXPECT_EQ(JobEvent(job::Stalled{milliseconds(2500)}), R"("coordinator_stalled","seconds":2.5})");
  EXPECT_EQ(JobEvent(job::Warned{"mind this"}), R"("warning","text":"mind this"})");
}

TEST(EventLineTest, AnAgentAndItsCoordinator) {
  EXPECT_EQ(NodeEvent(node::CoordinatorFound{"10.0.0.1:29400"}),
            R"("coordinator_found","endpoint":"10.0.0.1:29400"})");
  EXPECT_EQ(NodeEvent(node::CoordinatorLost{"reset"}), R"("coordinator_lost","why":"reset"})");
  EXPECT_EQ(NodeEvent(node::Left{1, "stopped"}), R"("agent_left","exit_code":1,"why":"stopped"})");
}

TEST(EventLineTest, AnAgentAndItsWorkers) {
  RankAssignment place;
  place.generation = Generation(3);
  place.group_rank = 1;
  place.group_world_size = 2;
  place.rank_offset = 8;
  place.local_world_size = 8;
  place.world_size = 16;
  place.restart_count = 1;
  EXPECT_EQ(NodeEvent(node::Assigned{place}),
            R"("assigned","generation":3,"group_rank":1,"nodes":2,"first_rank":8,"workers":8,)"
            R"("world_size":16,"restart":1})");
  EXPECT_EQ(NodeEvent(node::WorkersStarted{Generation(3), 8, {41, 42}}),
            R"("workers_started","generation":3,"first_rank":8,"pids":[41,42]})");
  EXPECT_EQ(NodeEvent(node::WorkersStopping{Generation(3), 15, milliseconds(1500), "why"}),
            R"("workers_stopping","generation":3,"signal":15,"grace_seconds":1.5,"why":"why"})");
  EXPECT_EQ(NodeEvent(node::WorkersKilled{Generation(3)}), R"("workers_killed","generation":3})");
  EXPECT_EQ(NodeEvent(node::AllEnded{Generation(3)}), R"("all_ended","generation":3})");
  EXPECT_EQ(NodeEvent(node::KeeperDied{"killed"}), R"("keeper_died","why":"killed"})");
}

TEST(EventLineTest, WhatAWorkerWroteIsCutAndMadeUtf8) {
  WorkerExit exit = KilledWorker();
  exit.signal = 0;
  exit.exit_code = 3;
  exit.error_message = "bad \xff byte " + std::string(10'000, 'x');
  const auto event = nlohmann::json::parse(
      FormatEvent(node::News(node::WorkerEnded{Generation(3), exit}), kSource, kWhen));
  EXPECT_EQ(event["event"], "worker_ended");
  EXPECT_EQ(event["exit_code"], 3);
  const std::string error = event["error"];
  EXPECT_EQ(error.substr(0, 13), "bad \xef\xbf\xbd byte ");
  EXPECT_LT(error.size(), 4200u);
}

}  // namespace
}  // namespace fsdprun
