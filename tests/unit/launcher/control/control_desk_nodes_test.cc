#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/launcher/control/asked_job.h"

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

AskedJob::Options Elastic(int min, int max) {
  AskedJob::Options options;
  options.spec.min_nodes = min;
  options.spec.max_nodes = max;
  return options;
}

v1::ControlQuestion DrainOf(const std::string& node, bool below_min = false) {
  v1::ControlQuestion question;
  question.mutable_drain()->set_node(node);
  question.mutable_drain()->set_below_min(below_min);
  return question;
}

v1::ControlQuestion ScaleTo(int min, int max) {
  v1::ControlQuestion question;
  question.mutable_scale()->set_min_nodes(min);
  question.mutable_scale()->set_max_nodes(max);
  return question;
}

void ExpectDone(AskedJob& job, const v1::ControlQuestion& question, const std::string& what) {
  grpc::Status status;
  EXPECT_THAT(job.Answer(question, &status), HasSubstr(what));
  EXPECT_TRUE(status.ok());
}

void ExpectRefused(AskedJob& job, const v1::ControlQuestion& question, grpc::StatusCode code,
                   const std::string& what) {
  grpc::Status status;
  EXPECT_THAT(job.Answer(question, &status), HasSubstr(what));
  EXPECT_EQ(status.error_code(), code);
}

/// The nodes 1 to `members` run generation 1.
void RunWorld(AskedJob& job, uint64_t members) {
  std::vector<uint64_t> who;
  for (uint64_t node = 1; node <= members; ++node) {
    job.Join(node);
    who.push_back(node);
  }
  job.Step(job::TimerDue{});  // Of the last call.
  job.Run(1, who);
  ASSERT_EQ(job.machine().phase(), job::Phase::kRunning);
}

TEST(ControlDeskDrain, NodeIsNamedByNameAddressOrRank) {
  for (const char* text : {"node-2", "10.0.0.2", "@1"}) {
    AskedJob job(Elastic(2, 3));
    RunWorld(job, 3);
    ExpectDone(job, DrainOf(text),
               "node node-2 (10.0.0.2, @1) is being drained: generation 1 ends");
    EXPECT_THAT(job.asked_for_, ElementsAre("drain 2"));
    ExpectDone(job, DrainOf(text), "is being drained already");
    EXPECT_THAT(job.asked_for_, ElementsAre("drain 2"));
  }
}

TEST(ControlDeskDrain, SpareLeaves) {
  AskedJob job(Elastic(2, 2));
  RunWorld(job, 2);
  job.Join(3);
  ExpectDone(job, DrainOf("node-3"), "node node-3 (10.0.0.3, waits) leaves the job");
}

TEST(ControlDeskDrain, WhoIsNotMeantForCertainIsListed) {
  AskedJob job(Elastic(1, 3));
  ExpectRefused(job, DrainOf("a"), grpc::StatusCode::NOT_FOUND, "has no nodes yet");
  job.Join(1, "a");
  job.Join(2, "a");
  job.Join(3, "b");
  job.Run(1, {1, 2, 3});
  ExpectRefused(
      job, DrainOf("a"), grpc::StatusCode::FAILED_PRECONDITION,
      "'a' is the name of several nodes: a (10.0.0.1, @0), a (10.0.0.2, @1); name one by");
  for (const char* text : {"c", "@3", "@", "@b", ""}) {
    ExpectRefused(job, DrainOf(text), grpc::StatusCode::NOT_FOUND,
                  "it has a (10.0.0.1, @0), a (10.0.0.2, @1), b (10.0.0.3, @2)");
  }
  EXPECT_THAT(job.asked_for_, IsEmpty());
}

TEST(ControlDeskDrain, TooFewOthersAreNoneUnlessTheJobMayWait) {
  AskedJob::Options options = Elastic(2, 3);
  options.spec.last_call = Duration{};
  AskedJob job(options);
  RunWorld(job, 2);
  ExpectRefused(job, DrainOf("@0"), grpc::StatusCode::FAILED_PRECONDITION,
                "the job would have 1 node, and it needs 2; add a node first, lower what it needs "
                "(fsdpctl scale 1:3), or give --below-min");
  EXPECT_THAT(job.asked_for_, IsEmpty());
  ExpectDone(job, DrainOf("@0", /*below_min=*/true),
             "generation 1 ends, and the job waits for nodes: it has 1 of 2");
  EXPECT_THAT(job.asked_for_, ElementsAre("drain 1"));
}

TEST(ControlDeskDrain, OnlyNodeOfAJobThatNobodyCanJoinStays) {
  AskedJob::Options options = Elastic(1, 1);
  options.endpoint = "";
  AskedJob job(options);
  RunWorld(job, 1);
  ExpectRefused(job, DrainOf("@0", /*below_min=*/true), grpc::StatusCode::FAILED_PRECONDITION,
                "no other can join it; fsdpctl stop ends the job");
}

TEST(ControlDeskDrain, JobThatIsBeingStoppedIsLeftAlone) {
  AskedJob job(Elastic(1, 2));
  RunWorld(job, 2);
  job.Step(job::OperatorStop{15});
  ExpectRefused(job, DrainOf("@0"), grpc::StatusCode::FAILED_PRECONDITION,
                "no node can be drained: the job is being stopped by signal 15");
  ExpectRefused(job, ScaleTo(1, 1), grpc::StatusCode::FAILED_PRECONDITION,
                "cannot be scaled: the job is being stopped");
}

TEST(ControlDeskDrain, StateTellsOfIt) {
  AskedJob job(Elastic(1, 2));
  RunWorld(job, 2);
  ExpectDone(job, DrainOf("@1"), "goes on with 1 node");
  v1::ControlQuestion question;
  question.mutable_status();
  const v1::JobStatus status = job.Ask(question)->Rest().at(0).status();
  EXPECT_FALSE(status.nodes(0).draining());
  EXPECT_TRUE(status.nodes(1).draining());
  EXPECT_TRUE(status.nodes(1).leaving());
}

TEST(ControlDeskScale, SaysWhatFollows) {
  AskedJob job(Elastic(1, 2));
  RunWorld(job, 2);
  job.Join(3);
  ExpectDone(job, ScaleTo(1, 2), "has --nnodes 1:2 already");
  ExpectDone(job, ScaleTo(3, 3),
             "has --nnodes 3 from now on, before 1:2; generation 1 goes on with 2 nodes; the next "
             "needs 3");
  EXPECT_THAT(job.asked_for_, ElementsAre("scale 3:3"));
  ExpectDone(job, ScaleTo(2, 8), "--nnodes 2:8 from now on");
  EXPECT_EQ(job.machine().max_nodes(), 8);
}

TEST(ControlDeskScale, MembersThatAreTooManyWait) {
  AskedJob job(Elastic(1, 3));
  RunWorld(job, 3);
  ExpectDone(job, ScaleTo(1, 2), "generation 1 ends, and the next has 2 of its 3 nodes");
  v1::ControlQuestion question;
  question.mutable_status();
  const v1::JobStatus status = job.Ask(question)->Rest().at(0).status();
  EXPECT_EQ(status.max_nodes(), 2);
  EXPECT_EQ(status.phase(), "stopping");
}

TEST(ControlDeskScale, NodesThatWaitJoin) {
  AskedJob job(Elastic(1, 1));
  RunWorld(job, 1);
  job.Join(2);
  ExpectDone(job, ScaleTo(1, 4), "of 1 node that waits, as many as are missing join");
}

TEST(ControlDeskScale, NumbersThatMeanNothingAreRefused) {
  AskedJob job(Elastic(1, 2));
  for (const auto& [min, max] : {std::pair(0, 2), std::pair(3, 2), std::pair(1, 65537)}) {
    ExpectRefused(job, ScaleTo(min, max), grpc::StatusCode::INVALID_ARGUMENT,
                  "1 <= MIN <= MAX <= 65536");
  }
  EXPECT_THAT(job.asked_for_, IsEmpty());
}

TEST(ControlDeskScale, RanksThatWereGivenLeaveNoRoom) {
  AskedJob::Options options = Elastic(2, 2);
  options.spec.node_ranks_bind = true;
  AskedJob job(options);
  job.Join(1, "", 0);
  job.Join(2, "", 1);
  ExpectRefused(job, ScaleTo(1, 2), grpc::StatusCode::FAILED_PRECONDITION, "--rdzv-backend static");
  grpc::Status status;
  EXPECT_THAT(job.Answer(DrainOf("@1"), &status), Not(HasSubstr("fsdpctl scale")));
}

TEST(ControlDeskScale, JobThatNobodyCanJoinStaysAsItIs) {
  AskedJob::Options options = Elastic(1, 1);
  options.endpoint = "";
  AskedJob job(options);
  ExpectRefused(job, ScaleTo(1, 2), grpc::StatusCode::FAILED_PRECONDITION, "--standalone");
}

}  // namespace
}  // namespace fsdprun
