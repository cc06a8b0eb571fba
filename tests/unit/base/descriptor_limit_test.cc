#include "base/descriptor_limit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;

class DescriptorLimitTest : public ::testing::Test {
 protected:
  DescriptorLimitTest() { ::getrlimit(RLIMIT_NOFILE, &before_); }
  ~DescriptorLimitTest() override { ::setrlimit(RLIMIT_NOFILE, &before_); }
  void Limit(rlim_t soft) {
    rlimit limit = before_;
    limit.rlim_cur = soft;
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }

  rlimit before_{};
};

TEST_F(DescriptorLimitTest, SoftLimitIsRaisedToTheHardOne) {
  Limit(400);
  EXPECT_EQ(RaiseDescriptorLimit(), 400u);
  rlimit now{};
  ::getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

TEST_F(DescriptorLimitTest, ShortageSaysHowManyThereAreAndWhatToDo) {
  Limit(400);
  EXPECT_EQ(DescriptorShortage(144, "nodes"), "");
  EXPECT_THAT(DescriptorShortage(145, "nodes"),
              HasSubstr("may have 400 descriptors, and 145 nodes need one each; raise the limit "
                        "to 401 (ulimit -Hn"));
}

}  // namespace
}  // namespace fsdprun
