// What people and programs are shown of a job.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "fsdpctl/jobs/status_json.h"
#include "fsdpctl/jobs/status_text.h"

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using json = nlohmann::json;

constexpr int64_t kSecond = 1'000'000'000;

v1::JobStatus Status() {
  v1::JobStatus status;
  status.set_job("run7");
  status.set_phase("running");
  status.set_reason("all 3 workers run");
  status.set_generation(2);
  status.set_world_size(3);
  status.set_age_ns(3 * 3600 * kSecond);
  const auto add = [&](const char* name, int first_rank, int workers) {
    v1::NodeStatus* node = status.add_nodes();
    node->set_name(name);
    node->set_state(first_rank < 0 ? "spare" : "member");
    node->set_group_rank(first_rank);
    node->set_first_rank(first_rank);
    node->set_workers(workers);
    node->set_connected(true);
    return node;
  };
  add("extra", -1, 1);
  add("b", 1, 2)->set_suspect(true);
  add("a", 0, 1);
  return status;
}

TEST(StatusTextTest, NodesAreInTheOrderOfTheirRanks) {
  const std::string text = StatusText(Status());
  EXPECT_LT(text.find("\na "), text.find("\nb "));
  EXPECT_LT(text.find("\nb "), text.find("\nextra "));
  EXPECT_THAT(text, HasSubstr("1-2"));
  EXPECT_THAT(text, HasSubstr("member, silent"));
  EXPECT_THAT(text, HasSubstr("3 h 0 min"));
  EXPECT_THAT(text, HasSubstr("none reported"));
}

TEST(StatusTextTest, WhatIsSetIsShown) {
  v1::JobStatus status = Status();
  status.mutable_progress()->set_step(5);
  status.mutable_progress()->set_total(10);
  status.mutable_progress()->set_text("loss 2.5");
  status.set_progress_age_ns(kSecond / 2);
  status.set_kill_in_ns(-kSecond);
  status.set_last_failure("rank 1 exited with 7");
  status.set_last_failure_age_ns(65 * kSecond);
  status.set_exit_code(1);
  const std::string text = StatusText(status);
  for (const char* part : {"step 5 of 10, loss 2.5 (0.5 s ago)", "killed in 0.0 s",
                           "rank 1 exited with 7 (1 min 5 s ago)", "exit code"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(StatusTextTest, NoTextSteersTheTerminal) {
  v1::JobStatus status = Status();
  status.set_reason(
      "one\x1b[2J\xc2\x9b"
      "3J\xff two \xc3\xb6\xc2\xa9");
  const std::string text = StatusText(status);
  EXPECT_THAT(text, HasSubstr("one [2J?3J\xef\xbf\xbd two \xc3\xb6\xc2\xa9"));
  EXPECT_EQ(EventText("no\x1b event"), "no  event");
}

TEST(StatusTextTest, WhatTheWatchHasFoundIsShown) {
  v1::JobStatus status = Status();
  v1::Finding* found = status.add_findings();
  found->set_id(3);
  found->set_kind("hang");
  found->set_what("rank 2 is stopped");
  found->set_age_ns(2 * kSecond);
  found->add_ranks(2);
  found->set_rank_count(64);
  EXPECT_THAT(StatusText(status), HasSubstr("rank 2 is stopped (found 2.0 s ago)"));
  const json shown = json::parse(StatusJson(status));
  EXPECT_EQ(shown.at("findings"),
            json::parse(R"([{"id": 3, "kind": "hang", "ranks": [2], "rank_count": 64,
                                                  "what": "rank 2 is stopped", "age_s": 2.0}])"));
}

TEST(StatusJsonTest, WorkersAreThereWhereTheyAreAskedFor) {
  v1::JobStatus status = Status();
  EXPECT_FALSE(json::parse(StatusJson(status)).contains("workers"));
  EXPECT_EQ(json::parse(StatusJson(status, true)).at("workers"), json::array());
  status.add_workers()->set_rank(0);
  v1::WorkerStatus* const worker = status.add_workers();
  worker->set_rank(1);
  worker->set_vitals_age_ns(kSecond / 2);
  worker->set_cpus(1.5);
  worker->mutable_vitals()->set_pid(12);
  worker->mutable_vitals()->set_state('T');
  worker->mutable_vitals()->set_rss_bytes(4096);
  v1::OwnVitals* const own = worker->mutable_vitals()->mutable_own();
  own->set_step(7);
  own->set_total(-1);
  own->set_loss(std::nan(""));
  own->set_step_ns(2 * kSecond);
  own->set_phase("forward");
  const json workers = json::parse(StatusJson(status, true)).at("workers");
  EXPECT_EQ(workers.at(0), json::parse(R"({"rank": 0, "ended": false, "age_s": null, "pid": null,
      "state": null, "cpus": null, "rss_bytes": null, "pss_bytes": null, "own": null})"));
  EXPECT_EQ(workers.at(1).at("state"), "T");
  EXPECT_EQ(workers.at(1).at("cpus"), 1.5);
  EXPECT_EQ(workers.at(1).at("age_s"), 0.5);
  EXPECT_TRUE(workers.at(1).at("pss_bytes").is_null());
  EXPECT_EQ(workers.at(1).at("own"), json::parse(R"({"doing": "forward", "step": 7, "total": null,
      "step_age_s": 0.0, "loss": null, "tokens_per_s": null, "tokens": null, "step_s": 2.0,
      "collective_wait_s": 0.0, "data_wait_s": 0.0, "save_s": 0.0, "collectives_begun": 0,
      "collectives_ended": 0, "collective": null, "unit": null, "collective_age_s": null,
      "collective_bytes": null, "device_bytes": null, "device_peak_bytes": null})"));
}

TEST(StatusTextTest, NoOtherProgramsTextSteersTheTerminal) {
  v1::JobStatus status = Status();
  status.set_reason("\x1b[2J\nNODE");
  EXPECT_THAT(StatusText(status), Not(HasSubstr("\x1b")));
  EXPECT_THAT(StatusText(status), HasSubstr(" [2J NODE"));
}

TEST(StatusJsonTest, NothingIsNullAndTextNeedNotBeText) {
  v1::JobStatus status = Status();
  status.set_reason("\xff");
  const json shown = json::parse(StatusJson(status));
  EXPECT_EQ(shown.at("v"), 1);
  EXPECT_EQ(shown.at("reason"), "\xef\xbf\xbd");
  for (const char* key : {"progress", "kill_in_s", "exit_code", "last_failure", "ledger"}) {
    EXPECT_TRUE(shown.at(key).is_null()) << key;
  }
  EXPECT_TRUE(shown.at("nodes").at(0).at("group_rank").is_null());
  EXPECT_EQ(shown.at("nodes").at(1).at("first_rank"), 1);
  EXPECT_EQ(shown.at("age_s"), 10800.0);
}

void AddTime(const char* bucket, int64_t ns, v1::JobStatus* status) {
  v1::TimeLedger* const ledger = status->mutable_ledger();
  ledger->set_wall_ns(ledger->wall_ns() + ns);
  v1::TimeLedger::Entry* const entry = ledger->add_entries();
  entry->set_bucket(bucket);
  entry->set_ns(ns);
}

TEST(StatusTextTest, TheTimeIsShownFromTheMostToTheLeast) {
  v1::JobStatus status = Status();
  EXPECT_THAT(StatusText(status), Not(HasSubstr("\ntime ")));
  AddTime("startup", 10 * kSecond, &status);
  AddTime("productive", 90 * kSecond, &status);
  AddTime("hang", 0, &status);
  EXPECT_THAT(StatusText(status), HasSubstr("productive 90.0 %, startup 10.0 % of 1 min 40 s\n"));
  status.mutable_ledger()->set_repeated_steps(5);
  EXPECT_THAT(StatusText(status), HasSubstr("1 min 40 s; 5 steps done again\n"));
}

TEST(StatusJsonTest, TheLedgerHasAllBuckets) {
  v1::JobStatus status = Status();
  AddTime("startup", 10 * kSecond, &status);
  AddTime("hang", 0, &status);
  json ledger = json::parse(StatusJson(status)).at("ledger");
  EXPECT_EQ(ledger.at("wall_s"), 10.0);
  EXPECT_EQ(ledger.at("buckets_s"), json::parse(R"({"startup":10.0,"hang":0.0})"));
  EXPECT_TRUE(ledger.at("goodput_ratio").is_null());
  status.mutable_ledger()->set_goodput_ratio(0.5);
  ledger = json::parse(StatusJson(status)).at("ledger");
  EXPECT_EQ(ledger.at("goodput_ratio"), 0.5);
}

TEST(JobListTest, JobsAreListed) {
  const std::vector<JobEntry> jobs = {
      {.run_id = "run7", .pid = 12, .node = "a", .endpoint = "a:1", .began_ms = 1000},
      {.run_id = "alone", .pid = 13, .began_ms = 90'000'000}};
  const std::string text = JobListText(jobs, 1000 + 26 * 3600 * 1000);
  EXPECT_THAT(text, HasSubstr("run7   12   1 d 2 h"));
  EXPECT_THAT(text, HasSubstr("alone  13   1 h 0 min  -"));
  const json list = json::parse(JobListJson(jobs));
  EXPECT_EQ(list.at("jobs").at(0).at("job"), "run7");
  EXPECT_EQ(list.at("jobs").at(1).at("endpoint"), "");
}

TEST(EventTextTest, AnEventIsALine) {
  EXPECT_THAT(EventText(R"({"v":1,"time":"2026-01-02T03:04:05.678Z","job":"j","node":"n","from":)"
                        R"("coordinator","event":"node_lost","name":"b","what":"was silent"})"),
              ::testing::EndsWith(":04:05.678  node_lost  name=\"b\"  what=\"was silent\""));
  EXPECT_EQ(EventText("no event"), "no event");
}

}  // namespace
}  // namespace fsdprun
