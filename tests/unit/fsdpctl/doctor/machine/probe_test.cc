#include "fsdpctl/doctor/machine/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <string>

namespace fsdprun::doctor {
namespace {

using ::testing::HasSubstr;

constexpr Duration kLong = std::chrono::seconds(30);
constexpr Duration kShort = std::chrono::milliseconds(100);

TEST(ProbeTest, SaysWhatWasFound) {
  EXPECT_EQ(RunProbe([] { return std::string(100'000, 'a'); }, kLong).value(),
            std::string(100'000, 'a'));
  EXPECT_EQ(ProbeFor<int>([] { return 42; }, kLong).value(), 42);
}

TEST(ProbeTest, IsNotWaitedForWhenItHangs) {
  const absl::Status status = RunProbe(
                                  [] {
                                    ::pause();
                                    return std::string();
                                  },
                                  kShort)
                                  .status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
}

TEST(ProbeTest, CrashIsAnError) {
  const absl::Status status = ProbeFor<int>(
                                  [] {
                                    ::raise(SIGKILL);
                                    return 1;
                                  },
                                  kLong)
                                  .status();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
}

TEST(ProbeTest, AsksPrograms) {
  EXPECT_EQ(
      AskProgram({"/bin/sh", "-c", "echo $WORD; echo no >&2"}, {{"WORD", "yes"}}, kLong).value(),
      "yes\n");
  EXPECT_THAT(AskProgram({"/bin/sh", "-c", "exit 3"}, {}, kLong).status().message(),
              HasSubstr("ended with 3"));
  EXPECT_FALSE(AskProgram({"/nowhere/program"}, {}, kLong).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      AskProgram({"/bin/sh", "-c", "exec sleep 60"}, {{"PATH", "/bin:/usr/bin"}}, kShort)
          .status()));
}

}  // namespace
}  // namespace fsdprun::doctor
