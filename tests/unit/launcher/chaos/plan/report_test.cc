#include "launcher/chaos/plan/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/unit/launcher/chaos/plan/campaign_case.h"

namespace fsdprun::chaos {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;

/// Two kills, of which the job has answered so many.
CampaignCase AfterTwoKills(int answered) {
  CampaignCase c({.plan = {.faults = {KillWorker(seconds(1)), KillWorker(seconds(1))}},
                  .patience = seconds(60),
                  .settle = CampaignCase::kSettle});
  c.view.run_id = "run7";
  c.After(seconds(0));
  for (size_t i = 0; i < 2; ++i) {
    c.After(seconds(1));
    if (static_cast<int>(i) < answered) {
      c.Answer(i);
      continue;
    }
    c.campaign.OnBegun(i, c.now, "worker 1 (pid 7)", kNewWorld);
    c.view.phase = "rendezvous";
    c.view.reason = "waiting for nodes";
    c.After(seconds(61));
    break;
  }
  return c;
}

Outcome OutcomeOf(const CampaignCase& c, int code) {
  return {
      .seed = 42, .run_id = "run7", .job_exit_code = code, .view = c.view, .lasted = seconds(30)};
}

TEST(ReportTest, TheFirstFaultThatWasNotSurvivedIsNamed) {
  CampaignCase c = AfterTwoKills(1);
  c.view.last_failure = "worker 1 ran out of memory";
  const Verdict verdict = Judge(c.campaign, OutcomeOf(c, 1));
  EXPECT_FALSE(verdict.is_good);
  EXPECT_EQ(
      verdict.text,
      "not survived: fault 2, kill worker 1 (pid 7): no answer within 1 min (--patience): the "
      "job is rendezvous (waiting for nodes)");
  EXPECT_THAT(verdict.advice, HasSubstr("worker 1 ran out of memory"));
  EXPECT_THAT(verdict.advice, HasSubstr("fsdpctl events --job run7"));
}

TEST(ReportTest, ADamageOfWhichNobodyTellsIsWarnedOf) {
  const FaultPlan damage{.faults = {KillWorker(seconds(1)), {.kind = FaultKind::kCorrupt}}};
  EXPECT_THAT(DamageWarning(damage, /*has_verify=*/false), HasSubstr("--verify"));
  EXPECT_EQ(DamageWarning(damage, /*has_verify=*/true), "");
  EXPECT_EQ(DamageWarning({.faults = {KillWorker(seconds(1))}}, /*has_verify=*/false), "");
}

TEST(ReportTest, AJobWithoutRestartsIsToldTheOption) {
  CampaignCase c = AfterTwoKills(1);
  c.view.max_restarts = c.view.restarts_used;
  EXPECT_THAT(Judge(c.campaign, OutcomeOf(c, 1)).advice, HasSubstr("--max-restarts"));
}

TEST(ReportTest, AnsweredFaultsAreNotEnough) {
  const CampaignCase c = AfterTwoKills(2);
  EXPECT_FALSE(Judge(c.campaign, OutcomeOf(c, 3)).is_good);
  Outcome unverified = OutcomeOf(c, 0);
  unverified.verify_exit_code = 4;
  EXPECT_FALSE(Judge(c.campaign, unverified).is_good);
  EXPECT_THAT(Judge(c.campaign, unverified).text, HasSubstr("--verify says 4"));
}

TEST(ReportTest, AnEndThatNobodyKnowsHasNoCode) {
  CampaignCase c(
      {.plan = {.faults = {StopAgent(seconds(1), seconds(600))}}, .patience = seconds(60)});
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "coordinator (pid 7)", {});
  c.campaign.OnJobOver(c.now, std::nullopt);
  const Outcome outcome{.run_id = "run7", .gone_for = seconds(120), .view = c.view};
  EXPECT_EQ(Judge(c.campaign, outcome).text,
            "not survived: fault 1, stop coordinator (pid 7): its coordinator is nowhere to be "
            "found for 2 min, and nobody knows how it has ended");
  EXPECT_TRUE(nlohmann::json::parse(ReportJson(c.campaign, outcome))["job_exit_code"].is_null());
}

TEST(ReportTest, FaultsThatWereAnsweredProveNothingOfAnEndThatNobodyKnows) {
  const CampaignCase c = AfterTwoKills(2);
  const Outcome outcome{.run_id = "run7", .gone_for = seconds(120), .view = c.view};
  EXPECT_FALSE(Judge(c.campaign, outcome).is_good);
  EXPECT_THAT(Judge(c.campaign, outcome).text,
              HasSubstr("after 2 faults its coordinator is nowhere to be found for 2 min"));
}

TEST(ReportTest, TheJobsOwnCodeTellsWhyAFaultWasNotSurvived) {
  CampaignCase c({.plan = {.faults = {KillWorker(seconds(1))}}, .patience = seconds(60)});
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnBegun(0, c.now, "worker 1 (pid 7)", kNewWorld);
  c.campaign.OnJobOver(c.now, 3);
  EXPECT_THAT(Judge(c.campaign, OutcomeOf(c, 0)).text, HasSubstr("the job has ended with 3"));
}

TEST(ReportTest, AJobThatCameThroughAllIsGood) {
  const CampaignCase c = AfterTwoKills(2);
  Outcome outcome = OutcomeOf(c, 0);
  EXPECT_TRUE(Judge(c.campaign, outcome).is_good);
  EXPECT_EQ(Judge(c.campaign, outcome).text, "survived 2 faults, and ended with 0");
  outcome.job_exit_code.reset();
  outcome.job_runs_on = true;
  EXPECT_TRUE(Judge(c.campaign, outcome).is_good);
  const std::string text = ReportText(c.campaign, outcome);
  EXPECT_THAT(text, HasSubstr("kill worker"));
  EXPECT_THAT(text, HasSubstr("2 of 9 restarts"));
  EXPECT_THAT(text, HasSubstr("2 s of 30 s"));
  EXPECT_THAT(text, HasSubstr("--seed 42"));
}

TEST(ReportTest, NoFaultIsNoProof) {
  CampaignCase c({.plan = {.faults = {KillWorker(seconds(1))}}, .patience = seconds(60)});
  c.After(seconds(0));
  c.After(seconds(1));
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  c.After(seconds(3));
  c.campaign.OnSkipped(0, c.now, "nobody is there");
  c.After(seconds(1));
  const Verdict verdict = Judge(c.campaign, OutcomeOf(c, 0));
  EXPECT_FALSE(verdict.is_good);
  EXPECT_EQ(verdict.text, "1 fault of 1 could not be done");
  EXPECT_EQ(verdict.advice, "kill worker: nobody is there");
}

TEST(ReportTest, FaultsThatDidNotComeAreNoProof) {
  CampaignCase c({.plan = {.faults = {KillWorker(seconds(1)), KillWorker(seconds(1))}},
                  .patience = seconds(60),
                  .settle = CampaignCase::kSettle});
  c.After(seconds(0));
  c.After(seconds(1));
  c.Answer(0);
  c.campaign.OnJobOver(c.now, 0);
  const Verdict verdict = Judge(c.campaign, OutcomeOf(c, 0));
  EXPECT_FALSE(verdict.is_good);
  EXPECT_EQ(verdict.text, "the job has ended before 1 fault of 2");
  EXPECT_THAT(verdict.advice, HasSubstr("--every"));
}

/// A kill that the job has answered, and a fault of another kind that could not be done.
Verdict AfterOneThatWasLeftOut(FaultPlan plan) {
  CampaignCase c(
      {.plan = std::move(plan), .patience = seconds(60), .settle = CampaignCase::kSettle});
  c.After(seconds(0));
  c.After(seconds(1));
  c.Answer(0);
  for (size_t i = 1; i < c.campaign.records().size(); ++i) {
    c.After(seconds(1));
    c.campaign.OnSkipped(i, c.now, "no checkpoint is there");
    c.After(seconds(3));
    c.campaign.OnSkipped(i, c.now, "no checkpoint is there");
  }
  c.After(seconds(1));
  return Judge(c.campaign, OutcomeOf(c, 0));
}

TEST(ReportTest, AKindThatCouldNeverBeDoneIsNoProof) {
  const PlannedFault corrupt{.at = seconds(1), .kind = FaultKind::kCorrupt};
  const Verdict verdict = AfterOneThatWasLeftOut({.faults = {KillWorker(seconds(1)), corrupt}});
  EXPECT_FALSE(verdict.is_good);
  EXPECT_EQ(verdict.text, "no fault of kind corrupt could be done");
  EXPECT_EQ(verdict.advice, "no checkpoint is there");
}

TEST(ReportTest, ATargetThatWasNeverThereIsNoProof) {
  const PlannedFault agent{
      .at = seconds(1), .kind = FaultKind::kKill, .target = FaultTarget::kAgent};
  EXPECT_EQ(AfterOneThatWasLeftOut({.faults = {KillWorker(seconds(1)), agent}}).text,
            "no fault of kind kill agent could be done");
}

TEST(ReportTest, RandomFaultsMayMeetNobodyNowAndThenAndThoseOfAScheduleNot) {
  FaultPlan plan{.faults = {KillWorker(seconds(1)), KillWorker(seconds(1))}};
  EXPECT_EQ(AfterOneThatWasLeftOut(plan).text,
            "survived 1 fault (1 could not be done), and ended with 0");
  plan.has_fixed_times = true;
  plan.faults[1].at = seconds(5);
  EXPECT_EQ(AfterOneThatWasLeftOut(plan).text, "1 fault of 2 could not be done");
}

TEST(ReportTest, AnInterruptedRunIsNoProof) {
  const CampaignCase c = AfterTwoKills(2);
  Outcome outcome = OutcomeOf(c, 0);
  outcome.is_interrupted = true;
  EXPECT_FALSE(Judge(c.campaign, outcome).is_good);
  EXPECT_THAT(Judge(c.campaign, outcome).text, HasSubstr("interrupted after 2 faults"));
}

TEST(ReportTest, WhatThisProgramCannotDoIsNotTheJobsFault) {
  const CampaignCase c = AfterTwoKills(1);
  Outcome outcome = OutcomeOf(c, 1);
  outcome.could_not = "cannot start fsdprun: no such file";
  EXPECT_EQ(Judge(c.campaign, outcome).text,
            "fsdprun chaos could not go on: cannot start fsdprun: no such file");
}

TEST(ReportTest, OverlappingFaultsLoseTheirTimeOnce) {
  const MonoTime start{seconds(100)};
  const auto record = [start](int from, int to, uint64_t generation) {
    FaultRecord r{.state = FaultRecord::State::kAnswered};
    r.begun_at = start + seconds(from);
    r.answered_at = start + seconds(to);
    r.generation_after = generation;
    return r;
  };
  EXPECT_EQ(TimeLost({record(0, 5, 1), record(2, 4, 1), record(3, 8, 1), record(20, 30, 0)}),
            seconds(8));
}

TEST(ReportTest, TimeIsLostUntilAllRunAgainNotUntilTheirNextStep) {
  FaultRecord record{.state = FaultRecord::State::kAnswered};
  record.begun_at = MonoTime{seconds(100)};
  record.runs_since = MonoTime{seconds(103)};
  record.answered_at = MonoTime{seconds(160)};
  record.generation_after = 2;
  EXPECT_EQ(TimeLost({record}), seconds(3));
}

TEST(ReportTest, JsonHasEachFault) {
  const CampaignCase c = AfterTwoKills(1);
  const auto report = nlohmann::json::parse(ReportJson(c.campaign, OutcomeOf(c, 1)));
  EXPECT_EQ(report["v"], 1);
  EXPECT_EQ(report["survived"], false);
  EXPECT_EQ(report["seed"], 42);
  EXPECT_EQ(report["faults"].size(), 2u);
  EXPECT_EQ(report["faults"][0]["state"], "answered");
  EXPECT_EQ(report["faults"][0]["answered_after_s"], 1.0);
  EXPECT_EQ(report["faults"][0]["restarts"], 1);
  EXPECT_EQ(report["faults"][1]["state"], "not answered");
  EXPECT_TRUE(report["faults"][1]["answered_after_s"].is_null());
}

TEST(ReportTest, TooFewRestartsAreWarnedOf) {
  const FaultPlan plan{.faults = {KillWorker(seconds(1)), KillWorker(seconds(1))}};
  EXPECT_EQ(RestartWarning(plan, {.max_restarts = 2}), "");
  EXPECT_EQ(RestartWarning({.faults = {StopAgent(seconds(1), seconds(1))}}, {}), "");
  EXPECT_THAT(RestartWarning(plan, {.restarts_used = 1, .max_restarts = 2}),
              HasSubstr("--max-restarts 3 or more"));
}

}  // namespace
}  // namespace fsdprun::chaos
