#include "fsdpctl/doctor/machine/probe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
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

/// Says all that it has to say, and does not end.
absl::Status StatusOfLinger() {
  return AskProgram({"/bin/sh", "-c", "exec >&-; exec sleep 60"}, {{"PATH", "/bin:/usr/bin"}},
                    kShort)
      .status();
}

TEST(ProbeTest, IsNotWaitedForAtItsEnd) {
  EXPECT_TRUE(absl::IsDeadlineExceeded(StatusOfLinger())) << StatusOfLinger();
}

/// As a container's seccomp profile may.
void RefusePidfds() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{.len = sizeof(program) / sizeof(program[0]), .filter = program};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) != 0) {
    ::_exit(2);
  }
}

TEST(ProbeTest, NeedsNoPidfd) {
  EXPECT_EXIT(
      {
        RefusePidfds();
        const bool is_well =
            RunProbe([] { return std::string("yes"); }, kLong).value_or("") == "yes" &&
            absl::IsDeadlineExceeded(StatusOfLinger());
        ::_exit(is_well ? 0 : 1);
      },
      ::testing::ExitedWithCode(0), "");
}

TEST(ProbeTest, WhatItHasStartedEndsWithIt) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);  // Whatever lives has the write end.
  const absl::Status status =
      AskProgram({"/bin/sh", "-c", "sleep 60 & wait"}, {{"PATH", "/bin:/usr/bin"}}, kShort)
          .status();
  ::close(ends[1]);
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  pollfd polled{.fd = ends[0], .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&polled, 1, 30'000), 1) << "the sleep goes on";
  ::close(ends[0]);
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
