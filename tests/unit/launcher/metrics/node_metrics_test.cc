#include "launcher/metrics/node_metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/unit/launcher/metrics/page_text.h"

namespace fsdprun {
namespace {

node::News Ended(uint64_t generation, int local_rank, int code, bool after_stop = false) {
  node::WorkerEnded ended{Generation(generation), {}};
  ended.exit.local_rank = local_rank;
  ended.exit.exit_code = code;
  ended.exit.after_stop = after_stop;
  return ended;
}
node::Event Told(uint64_t generation, int local_rank, int64_t step) {
  return node::WorkerProgress{Generation(generation), local_rank, {.step = step}};
}

class NodeMetricsTest : public testing::Test {
 protected:
  std::string Value(const std::string& row) const {
    MetricPage page({});
    CollectNode(node_, tally_, At(10), &page);
    return ValueOf(page, row);
  }

  NodeTally tally_;
  NodeSnapshot node_{.phase = "running", .generation = 3};
};

TEST_F(NodeMetricsTest, WorkersAreCountedByState) {
  tally_.On(node::WorkersStarted{Generation(3), 4, {11, 12, 13, 14}});
  tally_.On(Ended(3, 0, 0));
  tally_.On(Ended(3, 1, 1));
  tally_.On(Ended(3, 2, 1, /*after_stop=*/true));
  for (const char* state : {"running", "succeeded", "failed", "stopped"}) {
    EXPECT_EQ(Value("fsdprun_workers{state=\"" + std::string(state) + "\"}"), "1") << state;
  }
  tally_.On(node::WorkersStarted{Generation(4), 4, {21, 22}});
  EXPECT_EQ(Value(R"(fsdprun_workers{state="failed"})"), "0");
  EXPECT_EQ(Value("fsdprun_worker_starts_total"), "6");
  EXPECT_EQ(Value(R"(fsdprun_worker_exits_total{how="failed"})"), "1");
  tally_.On(Ended(3, 0, 1));  // Late news of the last world.
  EXPECT_EQ(Value(R"(fsdprun_workers{state="running"})"), "2");
}

TEST_F(NodeMetricsTest, AWorkerHasRowsWhileItRuns) {
  tally_.On(node::WorkersStarted{Generation(3), 4, {11, 12}});
  v1::WorkerVitals& seen = *node_.vitals.add_workers();
  seen.set_rank(5);
  seen.set_pid(12);
  seen.set_cpu_ns(2'000'000'000);
  seen.set_rss_bytes(4096);
  seen.set_pss_bytes(1024);
  const std::string labels = R"({rank="5",local_rank="1"})";
  EXPECT_EQ(Value("fsdprun_worker_cpu_seconds_total" + labels), "2");
  EXPECT_EQ(Value("fsdprun_worker_resident_memory_bytes" + labels), "4096");
  EXPECT_EQ(Value("fsdprun_worker_proportional_memory_bytes" + labels), "1024");
  EXPECT_EQ(Value("fsdprun_worker_loss" + labels), "");
  EXPECT_EQ(Value("fsdprun_worker_step" + labels), "");
  tally_.On(Told(3, 1, 17), At(4));
  tally_.On(Told(3, 1, 17), At(6));  // Nothing new.
  tally_.On(Told(2, 1, 18), At(7));  // Of the last world.
  EXPECT_EQ(Value("fsdprun_worker_step" + labels), "17");
  EXPECT_EQ(Value("fsdprun_worker_progress_age_seconds" + labels), "6");
  tally_.On(Ended(3, 1, 0));
  EXPECT_EQ(Value("fsdprun_worker_cpu_seconds_total" + labels), "");
  EXPECT_EQ(Value("fsdprun_worker_step" + labels), "");
}

TEST_F(NodeMetricsTest, WhatAWorkerSaysOfItself) {
  tally_.On(node::WorkersStarted{Generation(3), 4, {11, 12}});
  v1::WorkerVitals& worker = *node_.vitals.add_workers();
  worker.set_rank(4);
  worker.set_pid(11);
  v1::OwnVitals& own = *worker.mutable_own();
  own.set_loss(std::nan(""));
  const std::string labels = R"(rank="4",local_rank="0")";
  EXPECT_EQ(Value("fsdprun_worker_loss{" + labels + "}"), "");
  EXPECT_EQ(Value("fsdprun_worker_step_seconds{" + labels + "}"), "");
  own.set_loss(2.5);
  own.set_tokens_per_second(1000);
  own.set_step_ns(500'000'000);
  own.set_data_wait_ns(125'000'000);
  own.set_device_bytes(4096);
  own.set_device_peak_bytes(8192);
  EXPECT_EQ(Value("fsdprun_worker_loss{" + labels + "}"), "2.5");
  EXPECT_EQ(Value("fsdprun_worker_tokens_per_second{" + labels + "}"), "1000");
  EXPECT_EQ(Value("fsdprun_worker_step_seconds{" + labels + "}"), "0.5");
  EXPECT_EQ(Value("fsdprun_worker_step_part_seconds{" + labels + R"(,in="data"})"), "0.125");
  EXPECT_EQ(Value("fsdprun_worker_step_part_seconds{" + labels + R"(,in="saving"})"), "0");
  EXPECT_EQ(Value("fsdprun_worker_device_memory_bytes{" + labels + "}"), "4096");
  EXPECT_EQ(Value("fsdprun_worker_device_memory_peak_bytes{" + labels + "}"), "8192");
  worker.set_pid(9);  // Of a worker that this node has no more.
  EXPECT_EQ(Value("fsdprun_worker_loss{" + labels + "}"), "");
}

TEST_F(NodeMetricsTest, TheAgentsOwnState) {
  tally_.On(node::CoordinatorLost{"gone"});
  tally_.On(node::KeeperDied{"gone"});
  node_.has_coordinator = true;
  node_.dropped_output_bytes = 77;
  node_.lost_logs = 2;
  node_.fenced = 5;
  EXPECT_EQ(Value(R"(fsdprun_agent_phase{phase="running"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_agent_phase{phase="wedged"})"), "0");
  EXPECT_EQ(Value("fsdprun_agent_generation"), "3");
  EXPECT_EQ(Value("fsdprun_agent_connected"), "1");
  EXPECT_EQ(Value("fsdprun_agent_coordinator_losses_total"), "1");
  EXPECT_EQ(Value("fsdprun_agent_keeper_up"), "0");
  EXPECT_EQ(Value("fsdprun_agent_keeper_deaths_total"), "1");
  EXPECT_EQ(Value("fsdprun_agent_dropped_output_bytes_total"), "77");
  EXPECT_EQ(Value("fsdprun_agent_lost_logs"), "2");
  EXPECT_EQ(Value(R"(fsdprun_fenced_requests_total{by="agent"})"), "5");
}

}  // namespace
}  // namespace fsdprun
