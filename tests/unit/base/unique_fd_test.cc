#include "base/unique_fd.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <utility>

namespace fsdprun {
namespace {

int OpenNull() { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }
bool IsOpen(int fd) { return ::fcntl(fd, F_GETFD) >= 0; }

TEST(UniqueFdTest, ClosesOnDestructionAndReset) {
  int raw = OpenNull();
  { const UniqueFd fd(raw); }
  EXPECT_FALSE(IsOpen(raw));
  UniqueFd fd(raw = OpenNull());
  fd.reset();
  EXPECT_FALSE(IsOpen(raw));
  EXPECT_FALSE(fd.valid());
}

TEST(UniqueFdTest, MovingLeavesOneOwner) {
  const int raw = OpenNull();
  UniqueFd first(raw);
  UniqueFd second(std::move(first));
  EXPECT_FALSE(first.valid());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(second.get(), raw);
  second = UniqueFd();
  EXPECT_FALSE(IsOpen(raw));
}

TEST(UniqueFdTest, ReleaseGivesUpOwnership) {
  const int raw = OpenNull();
  {
    UniqueFd fd(raw);
    EXPECT_EQ(fd.release(), raw);
  }
  EXPECT_TRUE(IsOpen(raw));
  ::close(raw);
}

}  // namespace
}  // namespace fsdprun
