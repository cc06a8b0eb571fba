#include "fsdp_runtime/src/comm/group_error.h"

#include <c10/util/Exception.h>
#include <fsdp/collectives.h>
#include <gtest/gtest.h>

namespace fsdp {
namespace {

TEST(GroupErrorTest, ErrorsNameOperationRankAndHowLongItWaited) {
  try {
    throw_failure({"rank 3 died", 3}, "all_gather for unit a on lane 0", 1,
                  std::chrono::milliseconds(12));
  } catch (const PeerError& error) {
    EXPECT_EQ(std::string(error.what_without_backtrace()),
              "all_gather for unit a on lane 0 on rank 1, after 12 ms: rank 3 died");
    EXPECT_EQ(error.rank, 3);
    EXPECT_EQ(error.operation, "all_gather for unit a on lane 0");
    EXPECT_EQ(error.waited.count(), 12);
    EXPECT_EQ(failure_of_current_exception().lost_rank, 3);
  }
  try {
    throw_failure({"it took too long", {}}, "barrier on lane 1", 1, {});
  } catch (const PeerError&) {
    ADD_FAILURE() << "nobody is lost";
  } catch (const c10::Error&) {
    EXPECT_FALSE(failure_of_current_exception().lost_rank.has_value());
  }
}

}  // namespace
}  // namespace fsdp
