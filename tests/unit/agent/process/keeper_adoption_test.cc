// A keeper with a named socket, whose agent dies: see Note [A keeper that waits for its agent].
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/unit/agent/process/keeper_fixture.h"

extern char** environ;

namespace fsdprun {
namespace {

using keeper::Stream;
using testing::ElementsAre;

constexpr uint64_t kLife = 7;
constexpr auto kLongGrace = std::chrono::minutes(10);

/// Its agents are bare sockets: one that is closed is an agent that was killed.
class KeeperAdoptionTest : public KeeperFixture {
 protected:
  ~KeeperAdoptionTest() override {
    agent_.reset();
    if (keeper_ > 0 && client_ == nullptr) {
      ::kill(keeper_, SIGKILL);
      ::waitpid(keeper_, nullptr, 0);
    }
  }

  void StartNamedKeeper(Duration grace = kLongGrace) {
    BecomeSubreaper();
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    agent_ = UniqueFd(ends[0]);
    const UniqueFd theirs(ends[1]);
    const absl::StatusOr<UniqueFd> listener = ListenForAgents(path_);
    ASSERT_TRUE(listener.ok()) << listener.status();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    const UniqueFd first(::fcntl(theirs.get(), F_DUPFD_CLOEXEC, 10));
    const UniqueFd second(::fcntl(listener->get(), F_DUPFD_CLOEXEC, 10));
    posix_spawn_file_actions_adddup2(&actions, first.get(), 3);
    posix_spawn_file_actions_adddup2(&actions, second.get(), 4);
    std::string ms =
        std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(grace).count());
    char name[] = "fsdp-keeper";
    char* argv[] = {name, spool_.data(), ms.data(), vitals_.data(), nullptr};
    ASSERT_EQ(::posix_spawn(&keeper_, FSDPRUN_KEEPER_BINARY, &actions, nullptr, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
  }
  /// By another process, which is its first agent.
  void StartNamedKeeperOfAnother(bool only_closes = false) {
    BecomeSubreaper();
    int told[2];
    ASSERT_EQ(::pipe2(told, O_CLOEXEC), 0);
    first_agent_ = ::fork();
    if (first_agent_ == 0) {
      StartNamedKeeper();
      char hello[64];
      const bool is_there = ::recv(agent_.get(), hello, sizeof(hello), 0) > 0 &&
                            ::write(told[1], &keeper_, sizeof(keeper_)) == sizeof(keeper_);
      if (only_closes) {
        agent_.reset();
      }
      while (is_there) {
        ::pause();
      }
      ::_exit(1);
    }
    ASSERT_EQ(::read(told[0], &keeper_, sizeof(keeper_)), ssize_t{sizeof(keeper_)});
    ::close(told[0]);
    ::close(told[1]);
  }
  void KillFirstAgent() {
    ASSERT_EQ(::kill(first_agent_, SIGKILL), 0);
    ASSERT_EQ(::waitpid(first_agent_, nullptr, 0), first_agent_);
  }
  void MakeSpool() {
    spool_ = folder_ + "/spool";
    std::filesystem::create_directory(spool_);
    vitals_ = folder_ + "/vitals";
    std::filesystem::create_directory(vitals_);
  }
  /// Connects as anybody could.
  UniqueFd Visit(const std::string& says) {
    UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_un name{.sun_family = AF_UNIX, .sun_path = ""};
    EXPECT_LT(path_.size(), sizeof(name.sun_path));
    path_.copy(name.sun_path, sizeof(name.sun_path) - 1);
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&name), sizeof(name)), 0);
    EXPECT_EQ(::send(fd.get(), says.data(), says.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(says.size()));
    return fd;
  }
  void Order(const keeper::Command& command) {
    std::string frame;
    keeper::AppendCommand(command, frame);
    ASSERT_EQ(::send(agent_.get(), frame.data(), frame.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(frame.size()));
  }
  /// A worker with logs, a control socket and the life of all workers here.
  void OrderShell(int local_rank, const std::string& script) {
    Order(keeper::SpawnCommand{
        .local_rank = local_rank,
        .argv = {"sh", "-c", script},
        .environment = {"PATH=/usr/local/bin:/usr/bin:/bin", "FOLDER=" + folder_},
        .stdout_path = LogPath(local_rank, "out"),
        .stderr_path = LogPath(local_rank, "err"),
        .life = kLife});
  }
  void KillAgent() { agent_.reset(); }
  AttachedKeeper Attach() {
    absl::StatusOr<AttachedKeeper> attached = AttachToKeeper(path_);
    EXPECT_TRUE(attached.ok()) << attached.status();
    return attached.ok() ? *std::move(attached) : AttachedKeeper();
  }
  /// As the real client.
  std::string Adopt() {
    AttachedKeeper attached = Attach();
    std::string memo = attached.memo;
    MakeClient();
    client_->Adopt(std::move(attached));
    return memo;
  }
  /// Reads what the keeper says up to the end of all workers.
  void HearOfTheEnd(std::string heard) {
    for (;;) {
      std::string_view rest = heard;
      std::string_view frame;
      while (keeper::NextFrame(rest, keeper::kMaxReportBytes, frame) ==
             keeper::FrameState::kComplete) {
        if (std::holds_alternative<keeper::AllGoneReport>(*keeper::DecodeReport(frame))) {
          return;
        }
        rest.remove_prefix(keeper::kFrameHeaderBytes + frame.size());
      }
      pollfd ready{.fd = agent_.get(), .events = POLLIN, .revents = 0};
      ASSERT_EQ(::poll(&ready, 1, 60'000), 1);
      char buffer[4096];
      const ssize_t got = ::recv(agent_.get(), buffer, sizeof(buffer), 0);
      ASSERT_GT(got, 0);
      heard.append(buffer, static_cast<size_t>(got));
    }
  }
  bool RunUntilKeeperEnds() { return RunUntilDead({keeper_}); }

  const std::string path_ = folder_ + "/keeper";
  UniqueFd agent_;
  pid_t keeper_ = -1;
  pid_t first_agent_ = -1;
  std::string spool_;
  std::string vitals_;
};

TEST_F(KeeperAdoptionTest, WorkersRunOnAndTheNextAgentLearnsAllOfThem) {
  StartNamedKeeper();
  Order(keeper::MemoCommand{"old"});
  Order(keeper::MemoCommand{"what I know"});
  OrderShell(0, "echo $$ >> $FOLDER/pids; read line < $FOLDER/go; exit 5");
  OrderShell(1, "echo $$ >> $FOLDER/pids; echo one; echo two; exit 3");
  ASSERT_EQ(::mkfifo((folder_ + "/go").c_str(), 0600), 0);
  const std::vector<pid_t> pids = ReadPids("pids", 2);
  Order(keeper::ShownCommand{1, Stream::kStdout, 4, kLife});
  KillAgent();
  EXPECT_EQ(Adopt(), "what I know");
  ASSERT_TRUE(RunUntil([&] { return spawned_.size() == 2 && exited_.size() == 1; }));
  EXPECT_THAT((std::vector<pid_t>{spawned_[0].pid, spawned_[1].pid}),
              testing::UnorderedElementsAreArray(pids));
  EXPECT_EQ(exited_[1].exit_code, 3);
  EXPECT_EQ(exited_[1].life, kLife);
  EXPECT_EQ((log_size_[{1, Stream::kStdout}]), 8u);
  EXPECT_EQ((shown_before_[{1, Stream::kStdout}]), 4u);
  EXPECT_TRUE(IsAlive(spawned_[0].pid));
  const UniqueFd go(::open((folder_ + "/go").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::write(go.get(), "\n", 1), 1);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].exit_code, 5);
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  client_->Shutdown();
  EXPECT_TRUE(RunUntil([&] { return ended_ == 1; }));
}

TEST_F(KeeperAdoptionTest, AnExitThatAnAgentHasHeardIsToldAgainAndSoIsTheEndOfAll) {
  StartNamedKeeper();
  OrderShell(0, "exit 9");
  HearOfTheEnd("");
  for (int agent = 0; agent < 2; ++agent) {  // Each is killed before it has made use of it.
    KillAgent();
    AttachedKeeper attached = Attach();
    agent_ = std::move(attached.socket);
    HearOfTheEnd(attached.incoming);
  }
  KillAgent();
  Adopt();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_EQ(exited_[0].exit_code, 9);
}

TEST_F(KeeperAdoptionTest, AStartThatIsOrderedAgainIsNone) {
  StartNamedKeeper();
  OrderShell(0, "echo $$ >> $FOLDER/pids; exit 4");
  ReadPids("pids", 1);
  KillAgent();
  agent_ = std::move(Attach().socket);
  OrderShell(0, "echo $$ >> $FOLDER/pids; exit 4");
  OrderShell(1, "echo $$ >> $FOLDER/pids; exit 6");
  EXPECT_EQ(ReadPids("pids", 2).size(), 2u);
  KillAgent();
  Adopt();
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_EQ(exited_[0].exit_code, 4);
  EXPECT_EQ(exited_[1].exit_code, 6);
  EXPECT_EQ(ReadPids("pids", 2).size(), 2u);
  EXPECT_TRUE(spawn_failed_.empty());
}

TEST_F(KeeperAdoptionTest, WithoutAnotherAgentTheWorkersAreEndedAfterTheGrace) {
  StartNamedKeeper(std::chrono::milliseconds(200));
  OrderShell(0, "echo $$ >> $FOLDER/pids; sleep 1000");
  const std::vector<pid_t> pids = ReadPids("pids", 1);
  const MonoTime killed_at = MonoNow();
  KillAgent();
  EXPECT_TRUE(RunUntilDead(pids));
  EXPECT_GE(MonoNow() - killed_at, std::chrono::milliseconds(200));
  EXPECT_TRUE(RunUntilKeeperEnds());
}

TEST_F(KeeperAdoptionTest, AVisitorIsNoAgentAndHarmsNobody) {
  StartNamedKeeper();
  OrderShell(0, "echo $$ >> $FOLDER/pids; sleep 1000");
  const pid_t worker = ReadPids("pids", 1).at(0);
  std::string shutdown;
  keeper::AppendCommand(keeper::ShutdownCommand{}, shutdown);
  for (const bool has_agent : {true, false}) {
    for (const std::string& says : {std::string("GET / HTTP/1.1\r\n\r\n"), shutdown,
                                    std::string(4, '\0'), std::string(4, '\xff')}) {
      const UniqueFd visitor = Visit(says);
      char byte;
      EXPECT_LE(::recv(visitor.get(), &byte, 1, 0), 0) << "not disconnected: " << says;
    }
    const UniqueFd silent = Visit("");
    const UniqueFd slow = Visit(shutdown.substr(0, 2));
    if (has_agent) {
      // A second agent is refused while there is one.
      EXPECT_EQ(AttachToKeeper(path_, std::chrono::milliseconds(300)).status().code(),
                absl::StatusCode::kUnavailable);
      KillAgent();
    }
    char byte;
    EXPECT_EQ(::recv(silent.get(), &byte, 1, 0), 0);  // After a second.
  }
  EXPECT_TRUE(IsAlive(worker));
  Adopt();
  ASSERT_TRUE(RunUntil([&] { return spawned_.size() == 1; }));
  EXPECT_EQ(spawned_[0].pid, worker);
}

// As a child does that the agent was starting when it was killed, until its exec is over.
TEST_F(KeeperAdoptionTest, OneWhoseAgentsEndSomebodyStillHoldsIsAskedAgain) {
  StartNamedKeeper();
  UniqueFd held(::dup(agent_.get()));
  KillAgent();
  std::thread child([&held] {
    ::poll(nullptr, 0, 100);
    held.reset();
  });
  EXPECT_TRUE(AttachToKeeper(path_).ok());
  child.join();
}

TEST_F(KeeperAdoptionTest, TheSocketIsForTheUserAlone) {
  StartNamedKeeper();
  struct stat info {};
  ASSERT_EQ(::stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  KillAgent();
  if (::geteuid() != 0) {
    GTEST_SKIP() << "only root can be another user, and let that one past the mode";
  }
  ASSERT_EQ(::chmod(path_.c_str(), 0666), 0);
  ASSERT_EQ(::chmod(folder_.c_str(), 0777), 0);
  std::string attach;
  keeper::AppendCommand(keeper::AttachCommand{}, attach);
  const pid_t stranger = ::fork();
  if (stranger == 0) {  // Who asks nobody whether the listener is its own.
    if (::syscall(SYS_setresuid, 65534, 65534, 65534) != 0) {
      ::_exit(2);
    }
    const UniqueFd fd = Visit(attach);
    char byte;
    ::_exit(HasFailure() ? 3 : ::recv(fd.get(), &byte, 1, 0) > 0 ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(stranger, &status, 0), stranger);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0) << "1: it was answered, 2: no such user, 3: no way there";
  EXPECT_TRUE(AttachToKeeper(path_).ok());
}

TEST_F(KeeperAdoptionTest, OfAKeeperThatIsGoneOnlyTheNameIsLeft) {
  EXPECT_EQ(AttachToKeeper(path_).status().code(), absl::StatusCode::kNotFound);
  { ASSERT_TRUE(ListenForAgents(path_).ok()); }
  EXPECT_EQ(AttachToKeeper(path_).status().code(), absl::StatusCode::kNotFound);
  EXPECT_FALSE(HasKeeper(path_));
  StartNamedKeeper();  // In place of the name.
  EXPECT_TRUE(HasKeeper(path_));
}

TEST_F(KeeperAdoptionTest, ALongPathIsNoObstacle) {
  const std::string folder = folder_ + "/" + std::string(120, 'x');
  std::filesystem::create_directories(folder);
  const absl::StatusOr<UniqueFd> listener = ListenForAgents(folder + "/keeper");
  ASSERT_TRUE(listener.ok()) << listener.status();
  EXPECT_TRUE(HasKeeper(folder + "/keeper"));
}

TEST_F(KeeperAdoptionTest, AKeeperWithoutAnAgentCanBeEnded) {
  StartNamedKeeper();
  OrderShell(0, "echo $$ >> $FOLDER/pids; sleep 1000");
  const std::vector<pid_t> pids = ReadPids("pids", 1);
  KillAgent();
  EXPECT_TRUE(EndKeeper(path_).ok());
  EXPECT_TRUE(RunUntilDead(pids));
  EXPECT_TRUE(RunUntilKeeperEnds());
}

TEST_F(KeeperAdoptionTest, WhoIsOutOfDescriptorsDoesNotTakeAKeeperForEnded) {
  StartNamedKeeper();
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status status = EndKeeper(path_);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_TRUE(HasKeeper(path_));
}

TEST_F(KeeperAdoptionTest, WorkersOfAKeeperThatIsLostAreGoneWhenThatIsTold) {
  // The first agent's process stays, and adopts the keeper's children in place of this one.
  StartNamedKeeperOfAnother(/*only_closes=*/true);
  Adopt();
  // It survives the keeper.
  Spawn(
      Shell(0, "exec setpriv --pdeathsig clear sh -c 'echo $$ >> $FOLDER/pids; exec sleep 1000'"));
  const pid_t worker = ReadPids("pids", 1).at(0);
  ASSERT_EQ(::kill(keeper_, SIGKILL), 0);
  ASSERT_TRUE(RunUntil([&] { return lost_.size() == 1; }));
  EXPECT_FALSE(IsAlive(worker));
}

TEST_F(KeeperAdoptionTest, ASpoolThatNobodyTakesOverIsRemoved) {
  MakeSpool();
  StartNamedKeeperOfAnother();
  KillFirstAgent();
  EXPECT_TRUE(EndKeeper(path_).ok());
  EXPECT_TRUE(RunUntilKeeperEnds());
  EXPECT_FALSE(std::filesystem::exists(spool_));
  EXPECT_FALSE(std::filesystem::exists(vitals_));
}

TEST_F(KeeperAdoptionTest, ASpoolOfALivingAgentStays) {
  MakeSpool();
  StartNamedKeeperOfAnother();
  KillFirstAgent();
  agent_ = std::move(Attach().socket);
  Order(keeper::MemoCommand{"mine"});
  Order(keeper::LeaseCommand{1});  // As if this process was stopped.
  EXPECT_TRUE(RunUntilKeeperEnds());
  EXPECT_TRUE(std::filesystem::exists(spool_));
  EXPECT_TRUE(std::filesystem::exists(vitals_));
}

TEST_F(KeeperAdoptionTest, AKeeperThatWasTooSlowForTheNextAgentDoesNotRunOn) {
  StartNamedKeeper();
  OrderShell(0, "echo $$ >> $FOLDER/pids; sleep 1000");
  const std::vector<pid_t> pids = ReadPids("pids", 1);
  ASSERT_EQ(::kill(keeper_, SIGSTOP), 0);
  KillAgent();
  EXPECT_EQ(AttachToKeeper(path_, std::chrono::milliseconds(10)).status().code(),
            absl::StatusCode::kUnavailable);
  ASSERT_TRUE(ListenForAgents(path_).ok());  // The name is another's from here on.
  ASSERT_EQ(::kill(keeper_, SIGCONT), 0);
  EXPECT_TRUE(RunUntilDead(pids));
  EXPECT_TRUE(RunUntilKeeperEnds());
}

TEST_F(KeeperAdoptionTest, AVisitorThatCannotBeTakenCostsNoTime) {
  StartNamedKeeper();
  OrderShell(0, "echo $$ >> $FOLDER/pids; sleep 1000");
  ReadPids("pids", 1);
  clockid_t cpu;
  ASSERT_EQ(::clock_getcpuclockid(keeper_, &cpu), 0);
  const auto used_ms = [cpu] {
    timespec time{};
    ::clock_gettime(cpu, &time);
    return time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  };
  rlimit before{};
  ASSERT_EQ(::prlimit(keeper_, RLIMIT_NOFILE, nullptr, &before), 0);
  rlimit full{.rlim_cur = 0, .rlim_max = before.rlim_max};  // poll() must not be limited, too.
  while (std::filesystem::is_symlink("/proc/" + std::to_string(keeper_) + "/fd/" +
                                     std::to_string(full.rlim_cur))) {
    ++full.rlim_cur;
  }
  ASSERT_EQ(::prlimit(keeper_, RLIMIT_NOFILE, &full, nullptr), 0);
  const auto used_before = used_ms();
  const UniqueFd visitor = Visit("nonsense");
  pollfd answered{.fd = visitor.get(), .events = POLLIN, .revents = 0};
  EXPECT_EQ(::poll(&answered, 1, 500), 0);
  EXPECT_LT(used_ms() - used_before, 100);
  ASSERT_EQ(::prlimit(keeper_, RLIMIT_NOFILE, &before, nullptr), 0);
  EXPECT_EQ(::poll(&answered, 1, 60'000), 1);
}

TEST_F(KeeperAdoptionTest, OutputThatIsInNoFileWaitsForTheNextAgent) {
  StartNamedKeeper();
  keeper::SpawnCommand spawn{.local_rank = 0,
                             .argv = {"sh", "-c", "read line < $FOLDER/go; seq 1 200000"},
                             .environment = {"PATH=/usr/bin:/bin", "FOLDER=" + folder_},
                             .stdout_path = "/dev/full",
                             .stderr_path = LogPath(0, "err"),
                             .life = kLife};
  ASSERT_EQ(::mkfifo((folder_ + "/go").c_str(), 0600), 0);
  Order(spawn);
  KillAgent();
  const UniqueFd go(::open((folder_ + "/go").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_EQ(::write(go.get(), "\n", 1), 1);
  Adopt();
  ASSERT_TRUE(RunUntilExited(0));
  std::string expected;
  for (int i = 1; i <= 200'000; ++i) {
    expected += std::to_string(i) + "\n";
  }
  EXPECT_TRUE((log_data_[{0, Stream::kStdout}] == expected));
}

}  // namespace
}  // namespace fsdprun
