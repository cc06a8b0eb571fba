#include "launcher/control/worker_status.h"

#include <gtest/gtest.h>

#include <chrono>

#include "tests/unit/launcher/control/asked_job.h"

namespace fsdprun {
namespace {

using std::chrono::seconds;

constexpr MonoTime kNow{seconds(100)};

class WorkerStatusTest : public ::testing::Test {
 protected:
  WorkerStatusTest() {
    job_.Join(1);
    job_.Join(2);
    job_.Run(1, {1, 2});
    vitals_.Begin(Generation(1));
    v1::NodeVitals told;
    told.set_generation(1);
    told.add_workers()->set_rank(1);
    told.mutable_workers(0)->set_pid(77);
    vitals_.Take(told, kNow - seconds(3));
  }
  v1::JobStatus Described() {
    v1::JobStatus status;
    job_.Do([&] { DescribeWorkers(job_.machine().world(), vitals_, kNow, &status); });
    return status;
  }

  AskedJob job_;
  VitalsTable vitals_;
};

TEST_F(WorkerStatusTest, AllRanksAreThereInOrder) {
  const v1::JobStatus status = Described();
  ASSERT_EQ(status.workers_size(), 2);
  EXPECT_EQ(status.workers(0).rank(), 0);
  EXPECT_FALSE(status.workers(0).has_vitals());
  EXPECT_EQ(status.workers(1).rank(), 1);
  EXPECT_EQ(status.workers(1).vitals().pid(), 77);
  EXPECT_EQ(status.workers(1).vitals_age_ns(), 3'000'000'000);
  EXPECT_FALSE(status.workers(1).has_cpus());
}

TEST_F(WorkerStatusTest, WhoHasEndedIsKnown) {
  const uint64_t node = job_.machine().world().members()[1]->incarnation.value();
  const int rank = job_.machine().world().members()[1]->assignment.rank_offset;
  job_.Say(node, 1, WorkerExited{WorkerExit{.rank = rank}});
  const v1::JobStatus status = Described();
  EXPECT_TRUE(status.workers(rank).has_ended());
  EXPECT_FALSE(status.workers(1 - rank).has_ended());
}

TEST_F(WorkerStatusTest, NothingIsSaidByAnotherWorld) {
  vitals_.Begin(Generation(7));
  v1::NodeVitals told;
  told.set_generation(7);
  told.add_workers()->set_rank(1);
  vitals_.Take(told, kNow);
  EXPECT_FALSE(Described().workers(1).has_vitals());
}

}  // namespace
}  // namespace fsdprun
