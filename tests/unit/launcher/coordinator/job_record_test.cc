#include "launcher/coordinator/job_record.h"

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/unit/launcher/coordinator/job_driver.h"

namespace fsdprun {
namespace {

JobSpec TwoOfTwo() {
  JobSpec spec = Spec(2, 2, 1);
  spec.may_be_taken_over = true;
  spec.node_ranks_bind = false;
  return spec;
}

job::Record RunningRecord() {
  Job job(TwoOfTwo());
  job.RunTwo();
  return *job.record_;
}

TEST(JobRecord, OfARunningJobIsUsable) {
  EXPECT_EQ(job::WhyUnusable(RunningRecord(), TwoOfTwo()), "");
  EXPECT_EQ(job::WhyUnusable(job::Record{}, TwoOfTwo()), "");
}

struct Spoiled {
  const char* name;
  std::function<void(job::Record&)> spoil;
  const char* why;
};

class JobRecordSpoiled : public ::testing::TestWithParam<Spoiled> {};

TEST_P(JobRecordSpoiled, IsNotUsed) {
  job::Record record = RunningRecord();
  GetParam().spoil(record);
  EXPECT_EQ(job::WhyUnusable(record, TwoOfTwo()), GetParam().why);
}

using R = job::Record;

INSTANTIATE_TEST_SUITE_P(
    All, JobRecordSpoiled,
    ::testing::Values(
        Spoiled{"floor", [](R& r) { r.generation_floor = Generation(0); },
                "its generation is above the highest that was used"},
        Spoiled{"formations", [](R& r) { r.formations = 9; }, "what it says was used up cannot be"},
        Spoiled{"negative", [](R& r) { r.budgets.membership_changes = -1; },
                "what it says was used up cannot be"},
        Spoiled{"restarts", [](R& r) { r.budgets.restarts_used = 2; },
                "it has used 2 restarts, and only --max-restarts 1 are given"},
        Spoiled{"unformed", [](R& r) { r.formations = 0; },
                "there is a world that was never formed"},
        Spoiled{"over", [](R& r) { r.is_over = true; },
                "phase, members and outcome do not fit together"},
        Spoiled{"no_phase", [](R& r) { r.world.phase = job::WorldRecord::Phase::kNone; },
                "phase, members and outcome do not fit together"},
        Spoiled{"empty", [](R& r) { r.world.members.clear(); }, "there is a world without nodes"},
        Spoiled{"store", [](R& r) { r.world.store = {}; }, "a world runs without a store"},
        Spoiled{"order", [](R& r) { std::swap(r.nodes[0], r.nodes[1]); },
                "nodes are out of order or named twice"},
        Spoiled{"twice", [](R& r) { r.world.members[1] = r.world.members[0]; },
                "nodes are out of order or named twice"},
        Spoiled{"node", [](R& r) { r.nodes.pop_back(); },
                "a member of the world does not fit its node"},
        Spoiled{"rank", [](R& r) { r.nodes[0].group_rank = 5; },
                "a member of the world does not fit its node"},
        Spoiled{"world", [](R& r) { r.world.members[0].assignment.generation = Generation(7); },
                "a member belongs to another world"},
        Spoiled{"workers", [](R& r) { r.world.gone_succeeded = 1; },
                "there are more workers than the world has"}),
    [](const auto& info) { return info.param.name; });

TEST(JobRecord, OfAnotherSizeIsNotUsed) {
  EXPECT_EQ(job::WhyUnusable(RunningRecord(), Spec(1, 1, 1)),
            "its world has 2 nodes, and --nnodes allows 1");
}

}  // namespace
}  // namespace fsdprun
