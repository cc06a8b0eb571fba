#include "launcher/chaos/run/job_processes.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <string>

#include "absl/strings/str_cat.h"
#include "agent/process/process_scan.h"

namespace fsdprun::chaos {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// An agent, its keeper and a worker, as far as they are looked at.
class FakeNode {
 public:
  /// `agent`: the name of its program.
  FakeNode(const char* agent, const std::string& job, int rank) {
    std::array<int, 2> ends{};
    EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
    agent_ = ::fork();
    if (agent_ == 0) {
      ::prctl(PR_SET_NAME, agent);
      RunKeeper(ends[1], job, rank);
    }
    ::close(ends[1]);
    EXPECT_EQ(::read(ends[0], &keeper_, sizeof(keeper_)), ssize_t{sizeof(keeper_)});
    EXPECT_EQ(::read(ends[0], &worker_, sizeof(worker_)), ssize_t{sizeof(worker_)});
    char byte = 0;
    EXPECT_EQ(::read(ends[0], &byte, 1), 0);  // The worker's exec has closed it.
    ::close(ends[0]);
  }
  ~FakeNode() {
    ::kill(worker_, SIGKILL);
    ::kill(keeper_, SIGKILL);
    ::kill(agent_, SIGKILL);
    ::waitpid(agent_, nullptr, 0);
  }

  pid_t agent() const { return agent_; }
  pid_t keeper() const { return keeper_; }
  pid_t worker() const { return worker_; }

 private:
  [[noreturn]] static void RunKeeper(int fd, const std::string& job, int rank) {
    const pid_t keeper = ::fork();
    if (keeper == 0) {
      ::setsid();
      ::prctl(PR_SET_NAME, "fsdp-keeper");
      RunWorker(fd, job, rank);
    }
    ::close(fd);
    Pause();
  }
  [[noreturn]] static void RunWorker(int fd, const std::string& job, int rank) {
    const std::string id = "FSDPRUN_JOB_ID=" + job;
    const std::string number = absl::StrCat("RANK=", rank);
    const pid_t keeper = ::getpid();
    const pid_t worker = ::fork();
    if (worker == 0) {
      const pid_t self = ::getpid();
      const bool is_told =
          ::write(fd, &keeper, sizeof(keeper)) > 0 && ::write(fd, &self, sizeof(self)) > 0;
      const std::array<const char*, 3> words{is_told ? "sleep" : "false", "1000", nullptr};
      const std::array<const char*, 3> variables{id.c_str(), number.c_str(), nullptr};
      ::execve("/bin/sleep", const_cast<char**>(words.data()),
               const_cast<char**>(variables.data()));
      ::_exit(1);
    }
    ::close(fd);
    Pause();
  }
  [[noreturn]] static void Pause() {
    for (;;) {
      ::pause();
    }
  }

  pid_t agent_ = 0;
  pid_t keeper_ = 0;
  pid_t worker_ = 0;
};

std::vector<int64_t> PidsOf(const JobMarks& marks) {
  std::vector<int64_t> pids;
  for (const JobProcess& process : FindJobProcesses(marks)) {
    EXPECT_GT(process.start_ticks, 0u);
    pids.push_back(process.pid);
  }
  return pids;
}

TEST(JobProcessesTest, TwoJobsOfOneUserAreToldApart) {
  const std::string job = absl::StrCat("none/", ::getpid());
  const FakeNode mine("fsdprun", job + "/a", 3);
  const FakeNode other("fsdprun", job + "/b", 3);
  EXPECT_THAT(PidsOf({.job_id = job + "/a"}),
              ElementsAre(mine.keeper(), mine.agent(), mine.worker()));
  ProcessInfo agent;
  ASSERT_TRUE(ReadProcess(other.agent(), agent));
  EXPECT_THAT(PidsOf({.job_id = job + "/b",
                      .coordinator_pid = other.agent(),
                      .coordinator_start_ticks = agent.start_time_ticks}),
              ElementsAre(other.keeper(), other.agent(), other.worker(), other.agent()));
  EXPECT_THAT(PidsOf({.job_id = job}), IsEmpty());
}

TEST(JobProcessesTest, AnyOtherParentOfAKeeperIsNoAgent) {
  const std::string job = absl::StrCat("none/", ::getpid());
  const FakeNode node("systemd", job, 0);
  EXPECT_THAT(PidsOf({.job_id = job}), ElementsAre(node.keeper(), node.worker()));
  EXPECT_THAT(PidsOf({.job_id = job, .launchers = {{node.agent(), 0}}}),
              ElementsAre(node.keeper(), node.agent(), node.worker()));
}

TEST(DescendsFromTest, AncestorsAreKnown) {
  const FakeNode node("fsdprun", "none", 0);
  EXPECT_TRUE(DescendsFrom(node.worker(), node.agent()));
  EXPECT_TRUE(DescendsFrom(node.worker(), ::getpid()));
  EXPECT_FALSE(DescendsFrom(::getpid(), node.agent()));
}

}  // namespace
}  // namespace fsdprun::chaos
