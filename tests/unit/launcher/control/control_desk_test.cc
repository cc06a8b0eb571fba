#include "launcher/control/control_desk.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <memory>
#include <vector>

#include "tests/unit/launcher/control/asked_job.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

v1::ControlQuestion StatusOf(bool follow) {
  v1::ControlQuestion question;
  question.mutable_status()->set_follow(follow);
  return question;
}

v1::ControlQuestion WorkersOf(bool follow) {
  v1::ControlQuestion question = StatusOf(follow);
  question.mutable_status()->set_with_workers(true);
  return question;
}

v1::ControlQuestion EventsOf(bool follow) {
  v1::ControlQuestion question;
  question.mutable_events()->set_follow(follow);
  return question;
}

TEST(ControlDeskTest, AStateIsToldOnce) {
  AskedJob job;
  job.Join(1);
  const std::vector<v1::ControlAnswer> answers = job.Ask(StatusOf(false))->Rest();
  ASSERT_EQ(answers.size(), 1U);
  const v1::JobStatus& status = answers[0].status();
  EXPECT_EQ(status.job(), "run7");
  EXPECT_EQ(status.launch_id(), "12ab34cd");
  EXPECT_EQ(status.phase(), "rendezvous");
  EXPECT_THAT(status.reason(), HasSubstr("1 of 2 joined"));
  ASSERT_EQ(status.nodes_size(), 1);
  EXPECT_EQ(status.nodes(0).name(), "node-1");
  EXPECT_EQ(status.nodes(0).group_rank(), -1);
}

TEST(ControlDeskTest, WhoFollowsTheStateHearsOfEachNewOne) {
  AskedJob job;
  const auto call = job.Ask(StatusOf(true));
  EXPECT_EQ(call->Next()->status().nodes_size(), 0);
  job.Join(1);
  EXPECT_EQ(call->Next()->status().nodes_size(), 1);
  job.Join(2);
  EXPECT_EQ(call->Next()->status().phase(), "preparing");
}

TEST(ControlDeskTest, FindingsCountTheRanksThatTheyDoNotName) {
  AskedJob job;
  watch::HangFound hang{.id = 1, .culprits = {{3, "b", 77}, {4, "b", 78}}, .culprit_count = 64};
  watch::SlowFound slow{.id = 2, .ranks = {{5, "b", 79}}, .rank_count = 1};
  job.Do([&] {
    job.desk_.Note(watch::Finding(hang));
    job.desk_.Note(watch::Finding(slow));
  });
  const v1::JobStatus status = job.Ask(StatusOf(false))->Next()->status();
  ASSERT_EQ(status.findings_size(), 2);
  EXPECT_THAT(status.findings(0).ranks(), ElementsAre(3, 4));
  EXPECT_EQ(status.findings(0).rank_count(), 64);
  EXPECT_EQ(status.findings(1).rank_count(), 1);
}

TEST(ControlDeskTest, WorkersAreToldToWhoAsksForThem) {
  AskedJob job;
  EXPECT_EQ(job.Ask(StatusOf(false))->Rest().at(0).status().workers_size(), 0);
  EXPECT_EQ(job.Ask(WorkersOf(false))->Rest().at(0).status().workers_size(), 1);
}

TEST(ControlDeskTest, WhoFollowsWorkersHearsOfThemThoughNothingChanges) {
  AskedJob job;
  const auto call = job.Ask(WorkersOf(true));
  EXPECT_EQ(call->Next()->status().workers_size(), 1);
  const MonoTime first = MonoNow();
  EXPECT_EQ(call->Next()->status().workers_size(), 1);
  EXPECT_GE(MonoNow() - first, ControlDesk::kWorkersPause / 2);
}

TEST(ControlDeskTest, EventsAreToldFromTheFirstThatIsKnown) {
  AskedJob job;
  const auto call = job.Ask(EventsOf(true));
  EXPECT_EQ(call->Next()->events().lines_size(), 0);
  job.Join(1);
  EXPECT_THAT(call->Next()->events().lines(0), HasSubstr("node-1"));
  for (uint64_t i = 0; i < ControlDesk::kEventsKept; ++i) {
    job.Do([&] { job.desk_.Note(job::Warned{"again"}); });
  }
  uint64_t forgotten = 0;
  size_t lines = 0;
  for (const v1::ControlAnswer& answer : job.Ask(EventsOf(false))->Rest()) {
    EXPECT_LE(answer.events().lines_size(), static_cast<int>(ControlDesk::kLinesAtOnce));
    forgotten += answer.events().forgotten();
    lines += static_cast<size_t>(answer.events().lines_size());
  }
  EXPECT_EQ(forgotten, 1U);
  EXPECT_EQ(lines, ControlDesk::kEventsKept);
}

TEST(ControlDeskTest, WhatAnOperatorAsksForIsPassedOn) {
  AskedJob job;
  v1::ControlQuestion question;
  question.mutable_stop()->set_signal(SIGTERM);
  EXPECT_THAT(job.Ask(question)->Rest().at(0).done().what(), HasSubstr("being stopped"));
  question.mutable_stop()->set_signal(SIGKILL);
  grpc::Status status;
  job.Ask(question)->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  question.mutable_restart();
  job.Ask(question)->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("no workers run"));
  job.Join(1);
  job.Join(2);
  EXPECT_THAT(job.Ask(question)->Rest().at(0).done().what(), HasSubstr("generation 1 ends"));
  EXPECT_THAT(job.asked_for_, ElementsAre("stop 15", "restart"));
}

TEST(ControlDeskTest, WhoMayNotAskIsTold) {
  AskedJob job({.check = [](const grpc::CallbackServerContext&) {
    return absl::UnauthenticatedError("the token is wrong");
  }});
  grpc::Status status;
  EXPECT_TRUE(job.Ask(StatusOf(false))->Rest(&status).empty());
  EXPECT_EQ(status.error_message(), "the token is wrong");
}

TEST(ControlDeskTest, AQuestionThatIsNoneIsRefused) {
  AskedJob job;
  grpc::Status status;
  job.Ask({})->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST(ControlDeskTest, TooManyAreRefusedUntilSomeHaveGone) {
  AskedJob job;
  std::vector<std::unique_ptr<AskedJob::Call>> calls;
  for (size_t i = 0; i < ControlService::kCallsMax; ++i) {
    calls.push_back(job.Ask(StatusOf(true)));
    ASSERT_TRUE(calls.back()->Next());
  }
  grpc::Status status;
  job.Ask(StatusOf(false))->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  calls[0]->context.TryCancel();
  calls[0]->Rest();
  do {  // Until the server has heard of it, too.
    job.Ask(StatusOf(false))->Rest(&status);
  } while (!status.ok());
}

TEST(ControlDeskTest, OnceClosedNobodyIsToldMore) {
  AskedJob job;
  const auto call = job.Ask(StatusOf(true));
  EXPECT_TRUE(call->Next());
  job.Do([&] { job.desk_.Close("another one has taken over"); });
  grpc::Status status;
  call->Rest(&status);
  EXPECT_EQ(status.error_message(), "another one has taken over");
  job.Ask(StatusOf(false))->Rest(&status);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE);
}

}  // namespace
}  // namespace fsdprun
