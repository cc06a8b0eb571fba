#include "launcher/metrics/job_metrics.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/unit/launcher/metrics/page_text.h"

namespace fsdprun {
namespace {

using std::chrono::seconds;

class JobMetricsTest : public testing::Test {
 protected:
  void AddNode(const std::string& name, const std::string& state, int heard_s) {
    v1::NodeStatus* const node = status_.add_nodes();
    node->set_name(name);
    node->set_state(state);
    node->set_connected(true);
    node->set_heard_age_ns(heard_s * 1'000'000'000LL);
  }
  std::string Value(const std::string& row) const {
    MetricPage page({});
    CollectJob(status_, history_, counts_, At(10), &page);
    return ValueOf(page, row);
  }

  JobSpec spec_;
  JobMachine machine_{spec_};
  JobHistory history_{machine_, /*took_over=*/false, At(0)};
  JobCounts counts_{.fenced = 3, .outbox = 2, .node_lease = seconds(3), .began_unix_s = 1.5};
  v1::JobStatus status_;
};

TEST_F(JobMetricsTest, NodesAreCountedByWhatTheyAre) {
  AddNode("a", "member", 1);
  AddNode("b", "member", 2);
  AddNode("c", "spare", 0);
  status_.mutable_nodes(1)->set_connected(false);
  status_.mutable_nodes(1)->set_suspect(true);
  status_.mutable_nodes(2)->set_left_out(true);
  EXPECT_EQ(Value(R"(fsdprun_agents{state="member"})"), "2");
  EXPECT_EQ(Value(R"(fsdprun_agents{state="spare"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_agents{state="released"})"), "0");
  EXPECT_EQ(Value("fsdprun_agents_disconnected"), "1");
  EXPECT_EQ(Value("fsdprun_agents_silent"), "1");
  EXPECT_EQ(Value("fsdprun_agents_quarantined"), "1");
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="b",address=""})"), "2");
  EXPECT_EQ(Value("fsdprun_agent_lease_seconds"), "3");
}

TEST_F(JobMetricsTest, NodesOfTheSameNameAreOneSeries) {
  AddNode("a", "member", 1);
  AddNode("a", "spare", 2);
  MetricPage page({});
  CollectJob(status_, history_, counts_, At(10), &page);
  for (const prometheus::MetricFamily& family : page.families()) {
    if (family.name == "fsdprun_agent_heartbeat_age_seconds") {
      ASSERT_EQ(family.metric.size(), 1U);
      EXPECT_EQ(family.metric[0].gauge.value, 2);
    }
  }
}

TEST_F(JobMetricsTest, OfManyNodesThatAreWellNoneHasARow) {
  for (int i = 0; i < 1000; ++i) {
    AddNode("n" + std::to_string(i), "member", i % 2);
  }
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n1",address=""})"), "");
  EXPECT_EQ(Value("fsdprun_agent_heartbeat_age_max_seconds"), "1");
  status_.mutable_nodes(7)->set_connected(false);
  status_.mutable_nodes(8)->set_suspect(true);
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n7",address=""})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n8",address=""})"), "0");
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n9",address=""})"), "");
}

TEST_F(JobMetricsTest, OfManyNodesThoseHaveRowsThatWereNotHeardForLongest) {
  for (int i = 0; i < 1000; ++i) {
    AddNode("n" + std::to_string(i), "member", i);
  }
  MetricPage page({});
  CollectJob(status_, history_, counts_, At(10), &page);
  size_t rows = 0;
  for (const prometheus::MetricFamily& family : page.families()) {
    rows += family.metric.size();
  }
  EXPECT_LT(rows, 150U);
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n999",address=""})"), "999");
  EXPECT_EQ(Value(R"(fsdprun_agent_heartbeat_age_seconds{peer="n967",address=""})"), "");
}

TEST_F(JobMetricsTest, WhatIsNotKnownHasNoRow) {
  EXPECT_EQ(Value("fsdprun_step"), "");
  EXPECT_EQ(Value("fsdprun_progress_age_seconds"), "");
  EXPECT_EQ(Value("fsdprun_job_exit_code"), "");
  EXPECT_EQ(Value(R"(fsdprun_goodput_ratio{window="total"})"), "");
  status_.mutable_progress()->set_step(7);
  status_.mutable_progress()->set_total(-1);
  status_.set_progress_age_ns(2'500'000'000);
  status_.set_exit_code(1);
  EXPECT_EQ(Value("fsdprun_step"), "7");
  EXPECT_EQ(Value("fsdprun_progress_age_seconds"), "2.5");
  EXPECT_EQ(Value("fsdprun_steps_planned"), "");
  EXPECT_EQ(Value("fsdprun_job_exit_code"), "1");
}

TEST_F(JobMetricsTest, WhatIsLeftOfTheRestartsIsNeverNegative) {
  status_.set_max_restarts(3);
  status_.set_restarts_used(4);
  EXPECT_EQ(Value("fsdprun_restart_budget_remaining"), "0");
  EXPECT_EQ(Value("fsdprun_restarts_total"), "4");
}

TEST_F(JobMetricsTest, TheTimeIsWhereItWent) {
  history_.Note(job::WorldFormed{}, At(2));
  history_.Note(job::WorldCommitted{}, At(4));
  status_.set_phase("running");
  EXPECT_EQ(Value(R"(fsdprun_time_seconds_total{bucket="rendezvous"})"), "2");
  EXPECT_EQ(Value(R"(fsdprun_time_seconds_total{bucket="running"})"), "0");
  EXPECT_EQ(Value(R"(fsdprun_time_open_seconds{bucket="running"})"), "6");
  EXPECT_EQ(Value("fsdprun_job_age_seconds"), "10");
  EXPECT_EQ(Value(R"(fsdprun_job_phase{phase="running"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_job_phase{phase="stopping"})"), "0");
}

TEST_F(JobMetricsTest, FaultsAndWhatBecameOfThem) {
  job::FailureReported failure;
  failure.failure.kind = CauseKind::kWorkerFailed;
  history_.Note(failure, At(5));
  history_.Note(failure, At(5));  // Of the same cause.
  history_.Note(job::WorldStopping{Generation(1), job::StopKind::kFailure, ""}, At(5));
  history_.Note(job::WorldStopped{Generation(1), CauseKind::kWorkerFailed}, At(5));
  history_.Note(job::WorldCommitted{}, At(6));
  history_.Refuse();
  EXPECT_EQ(Value(R"(fsdprun_faults_total{class="worker_failed"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_faults_total{class="node_lost"})"), "0");
  EXPECT_EQ(Value(R"(fsdprun_recoveries_total{cause="failure",outcome="recovered"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_recovery_duration_seconds_count{until="start"})"), "1");
  EXPECT_EQ(Value(R"(fsdprun_recovery_duration_seconds_count{until="progress"})"), "0");
  EXPECT_EQ(Value("fsdprun_denied_total"), "1");
  EXPECT_EQ(Value(R"(fsdprun_fenced_requests_total{by="coordinator"})"), "3");
  EXPECT_EQ(Value("fsdprun_coordinator_outbox_messages"), "2");
  EXPECT_EQ(Value("fsdprun_coordinator_took_over"), "0");
}

}  // namespace
}  // namespace fsdprun
