#include "launcher/slurm/requeue_notice.h"

#include <gtest/gtest.h>

namespace fsdprun {
namespace {

TEST(RequeueNoticeTest, SaysWhenAndHowToHaveItOtherwise) {
  SlurmJobRecord record;
  record.end_time = 10'000;
  EXPECT_EQ(RequeueNotice(RequeueMode::kAlways, "12", record, 6'400, 60),
            "in 59m, 60 s before the end of its time limit, job 12 stops its workers, so that "
            "they can save, and is requeued; --requeue=never or sbatch --no-requeue switches that "
            "off");
}

TEST(RequeueNoticeTest, MarginThatHasBegunIsNoTimeOfThePast) {
  SlurmJobRecord record;
  record.end_time = 10'000;
  EXPECT_EQ(RequeueNotice(RequeueMode::kAuto, "12", record, 9'952, 55),
            "the last 55 s of the time limit of job 12 have begun: it stops its workers as soon as "
            "one has reported a step, so that they can save, and is requeued; --requeue=never or "
            "sbatch --no-requeue switches that off");
}

TEST(RequeueNoticeTest, OneThatDependsOnProgressSaysSo) {
  SlurmJobRecord record;
  record.end_time = 10'000;
  EXPECT_NE(RequeueNotice(RequeueMode::kAuto, "12", record, 6'400, 60)
                .find("is requeued if a worker has reported a step by then;"),
            std::string::npos);
}

}  // namespace
}  // namespace fsdprun
