#include "base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>

namespace fsdprun {
namespace {

absl::StatusOr<std::unique_ptr<int>> MakeInt(bool succeeds) {
  if (!succeeds) {
    return absl::NotFoundError("no int");
  }
  return std::make_unique<int>(5);
}

absl::Status Use(bool succeeds, int& out) {
  ASSIGN_OR_RETURN(const std::unique_ptr<int> value, MakeInt(succeeds));
  RETURN_IF_ERROR(absl::OkStatus());
  out = *value;
  RETURN_IF_ERROR(absl::AbortedError("late"));
  out = -1;
  return absl::OkStatus();
}

TEST(StatusMacrosTest, AssignOrReturnMovesTheValueOrReturnsTheError) {
  int out = 0;
  EXPECT_EQ(Use(false, out), absl::NotFoundError("no int"));
  EXPECT_EQ(out, 0);
  EXPECT_EQ(Use(true, out), absl::AbortedError("late"));
  EXPECT_EQ(out, 5);
}

}  // namespace
}  // namespace fsdprun
