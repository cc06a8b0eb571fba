#include "launcher/slurm/queue_listing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace fsdprun {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

TEST(QueueListingTest, EachLineIsAJobOrAComponentOfOne) {
  EXPECT_THAT(
      ReadListedJobs("CLUSTER: test\n"
                     "12\tRUNNING\tnode[1-2]\tOK\t1-02:03:04\tgres:gpu:8\ta|b\ttwo words\tof\tit\n"
                     "and more\t\n"
                     "13_2\tPENDING\t\tNO\tUNLIMITED\tN/A\t(null)\tx\t(null)\n"
                     "14+1\tRUNNING\tnode3\tOK\tNOT_SET\tN/A\t\ty\t(null)\n"),
      ElementsAre(
          ListedJob{"12", "RUNNING", "node[1-2]", "OK", "1-02:03:04", "gres:gpu:8", "a|b",
                    "two words", "of\tit"},
          ListedJob{"13_2", "PENDING", "", "NO", "UNLIMITED", "N/A", "(null)", "x", "(null)"},
          ListedJob{"14", "RUNNING", "node3", "OK", "NOT_SET", "N/A", "", "y", "(null)"}));
}

TEST(QueueListingTest, WhatIsNoListingHasNoJobs) {
  EXPECT_THAT(ReadListedJobs(""), ElementsAre());
  EXPECT_THAT(ReadListedJobs("squeue: error: Unable to contact slurm controller\n\t\n"),
              ElementsAre());
}

TEST(QueueListingTest, UsersDefaultsHideNothing) {
  EXPECT_THAT(ListJobsEnvironment({{"SQUEUE_STATES", "PENDING"}, {"SLURM_CONF", "/c"}}),
              ElementsAre(Pair("SLURM_CONF", "/c")));
}

}  // namespace
}  // namespace fsdprun
