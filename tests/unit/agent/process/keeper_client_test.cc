#include "agent/process/keeper_client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "tests/unit/agent/process/keeper_fixture.h"

namespace fsdprun {
namespace {

using testing::HasSubstr;

class KeeperClientTest : public KeeperFixture {};

TEST_F(KeeperClientTest, MissingKeeperIsNotFound) {
  KeeperClient client(loop_, {});
  const absl::Status status = client.Start("/none/fsdp-keeper");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/none/fsdp-keeper"));
  EXPECT_FALSE(client.is_alive());
}

TEST_F(KeeperClientTest, KeeperIsLookedForBesideTheProgram) {
  // The tests' folder has none.
  const absl::StatusOr<std::string> path = FindKeeperBinary();
  EXPECT_EQ(path.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(path.status().message()), HasSubstr("/fsdp-keeper"));
}

/// A keeper without a client: the test speaks to it over a bare socket.
struct BareKeeper {
  explicit BareKeeper(const char* spool = nullptr) {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid = ::fork();
    if (pid == 0) {
      ::dup2(ends[1], 3);
      ::execl(FSDPRUN_KEEPER_BINARY, "fsdp-keeper", spool, nullptr);
      ::_exit(127);
    }
    ::close(ends[1]);
    socket.reset(ends[0]);
  }
  void Send(const std::string& bytes) const {
    EXPECT_EQ(::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  /// Reads reports up to the first death; none if that does not come in time.
  std::optional<keeper::ExitedReport> ReadExit() const {
    const timeval timeout{.tv_sec = 20, .tv_usec = 0};
    ::setsockopt(socket.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    std::string stream;
    char bytes[4096];
    for (;;) {
      std::string_view frame;
      while (keeper::NextFrame(stream, keeper::kMaxReportBytes, frame) ==
             keeper::FrameState::kComplete) {
        const std::optional<keeper::Report> report = keeper::DecodeReport(frame);
        if (report && std::holds_alternative<keeper::ExitedReport>(*report)) {
          return std::get<keeper::ExitedReport>(*report);
        }
        stream.erase(0, keeper::kFrameHeaderBytes + frame.size());
      }
      const ssize_t got = ::recv(socket.get(), bytes, sizeof(bytes), 0);
      if (got <= 0) {
        return std::nullopt;
      }
      stream.append(bytes, static_cast<size_t>(got));
    }
  }
  pid_t pid = -1;
  UniqueFd socket;
};

TEST_F(KeeperClientTest, GarbageFromTheAgentEndsWorkersAndKeeper) {
  const std::string garbage = std::string("\x03\0\0\0\x63xx", 7);
  const std::string huge_length = std::string(4, '\xff');
  int round = 0;
  for (const std::string& attack : {garbage, huge_length}) {
    const BareKeeper keeper;
    const std::string name = "pid" + std::to_string(round++);
    keeper::SpawnCommand spawn{
        .local_rank = 0,
        .argv = {"/bin/sh", "-c",
                 "echo $$ > " + folder_ + "/" + name + "; exec tail -f /dev/null"}};
    spawn.environment = {"PATH=/usr/bin:/bin"};
    std::string frame;
    keeper::AppendCommand(spawn, frame);
    keeper.Send(frame.substr(0, 9));
    keeper.Send(frame.substr(9));
    const std::vector<pid_t> worker = ReadPids(name, 1);
    ASSERT_EQ(worker.size(), 1u);
    keeper.Send(attack);
    EXPECT_TRUE(RunUntilDead({worker[0], keeper.pid}));
    int status = -1;
    EXPECT_EQ(::waitpid(keeper.pid, &status, 0), keeper.pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 1) << status;
  }
}

TEST_F(KeeperClientTest, SpoolStaysWhileSomebodyElseCanRemoveIt) {
  const std::string spool = folder_ + "/spool";
  ASSERT_EQ(::mkdir(spool.c_str(), 0700), 0);
  for (const bool is_ordered : {false, true}) {
    BareKeeper keeper(spool.c_str());
    if (is_ordered) {
      std::string frame;
      keeper::AppendCommand(keeper::ShutdownCommand{}, frame);
      keeper.Send(frame);
    }
    keeper.socket.reset();
    ASSERT_TRUE(RunUntilDead({keeper.pid}));
    int status = -1;
    EXPECT_EQ(::waitpid(keeper.pid, &status, 0), keeper.pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(::access(spool.c_str(), F_OK), 0);
  }
}

TEST_F(KeeperClientTest, ExitsAreSeenAlthoughOurParentIgnoredSigchld) {
  const auto before = ::signal(SIGCHLD, SIG_IGN);
  const BareKeeper keeper;
  ::signal(SIGCHLD, before);
  keeper::SpawnCommand spawn{.local_rank = 0, .argv = {"/bin/sh", "-c", "exit 7"}};
  std::string frame;
  keeper::AppendCommand(spawn, frame);
  keeper.Send(frame);
  const std::optional<keeper::ExitedReport> exit = keeper.ReadExit();
  ASSERT_TRUE(exit.has_value());
  EXPECT_EQ(exit->exit_code, 7);
}

// The test is the agent, and says nothing any more.
TEST_F(KeeperClientTest, AKeeperWhoseLeaseIsOverEndsTheWorkersAndItself) {
  const BareKeeper keeper;
  keeper::SpawnCommand spawn{
      .local_rank = 0,
      .argv = {"/bin/sh", "-c", "echo $$ > " + folder_ + "/pid; exec tail -f /dev/null"}};
  spawn.environment = {"PATH=/usr/bin:/bin"};
  std::string frames;
  keeper::AppendCommand(spawn, frames);
  keeper.Send(frames);
  const std::vector<pid_t> worker = ReadPids("pid", 1);
  ASSERT_EQ(worker.size(), 1u);
  frames.clear();
  keeper::AppendCommand(keeper::LeaseCommand{.lease_ms = 200}, frames);
  keeper.Send(frames);
  ASSERT_TRUE(RunUntilDead({worker[0], keeper.pid}));
  int status = -1;
  EXPECT_EQ(::waitpid(keeper.pid, &status, 0), keeper.pid);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == keeper::kExitLeaseOver) << status;
}

std::string LeaseFrame(uint32_t ms) {
  std::string frame;
  keeper::AppendCommand(keeper::LeaseCommand{.lease_ms = ms}, frame);
  return frame;
}

/// The path of a program that keeps in the file `got` the first `bytes` that it is sent, and then
/// makes the file `ready`.
std::string MakeRecorder(const std::string& folder, size_t bytes) {
  std::string hello;
  keeper::AppendReport(keeper::HelloReport{.pid = 1}, hello);
  std::ofstream(folder + "/hello", std::ios::binary) << hello;
  const std::string path = folder + "/fsdp-keeper";
  std::ofstream(path) << "#!/bin/sh\ncat " << folder << "/hello >&3\nhead -c " << bytes << " <&3 > "
                      << folder << "/got\necho 1 > " << folder
                      << "/ready\nexec tail -f /dev/null\n";
  ::chmod(path.c_str(), 0755);
  return path;
}

TEST_F(KeeperClientTest, ALeaseIsRenewedWhileTheLoopRuns) {
  const std::string frame = LeaseFrame(70);
  StartKeeper(MakeRecorder(folder_, 4 * frame.size()));
  client_->HoldLease(std::chrono::milliseconds(70));
  ASSERT_EQ(ReadPids("ready", 1).size(), 1u);
  EXPECT_EQ(ReadFile(folder_ + "/got"), frame + frame + frame + frame);
}

TEST_F(KeeperClientTest, AnotherLeaseTakesThePlaceOfTheFirst) {
  const std::string first = LeaseFrame(70);
  const std::string second = LeaseFrame(210);
  StartKeeper(MakeRecorder(folder_, first.size() + 3 * second.size()));
  client_->HoldLease(std::chrono::milliseconds(70));
  client_->HoldLease(std::chrono::milliseconds(210));
  ASSERT_EQ(ReadPids("ready", 1).size(), 1u);
  EXPECT_EQ(ReadFile(folder_ + "/got"), first + second + second + second);
}

TEST_F(KeeperClientTest, WorkersGetTheirOwnDescriptorLimit) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "ulimit -Sn; ulimit -Sn 201");
  spec.descriptor_limit = 200;
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(ReadFile(LogPath(0, "out")), "200\n");
  EXPECT_EQ(exited_[0].exit_code, 0) << "the hard limit is unchanged";
}

TEST_F(KeeperClientTest, WorkersGetTheirOwnCpus) {
  cpu_set_t usable;
  ASSERT_EQ(::sched_getaffinity(0, sizeof(usable), &usable), 0);
  int last = CPU_SETSIZE - 1;
  while (!CPU_ISSET(last, &usable)) {
    --last;
  }
  StartKeeper();
  WorkerSpec bound = Shell(0, "grep Cpus_allowed_list /proc/self/status");
  bound.cpus = {last};
  WorkerSpec free = Shell(1, bound.argv.back());
  Spawn(bound);
  Spawn(free);
  ASSERT_TRUE(RunUntilExited(0) && RunUntilExited(1));
  EXPECT_EQ(ReadFile(LogPath(0, "out")), "Cpus_allowed_list:\t" + std::to_string(last) + "\n");
  EXPECT_EQ(ReadFile(LogPath(1, "out")).find("Cpus_allowed_list:"), 0u);
}

TEST_F(KeeperClientTest, CpusThatAreGoneAreAFailedStart) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "exit 0");
  spec.cpus = {keeper::kMaxCpu};
  Spawn(spec);
  ASSERT_TRUE(RunUntil([&] { return !spawn_failed_.empty(); }));
  EXPECT_EQ(spawn_failed_[0].attempted, "bind to the CPUs of --numa-binding");
  EXPECT_EQ(spawn_failed_[0].error, EINVAL);
}

TEST_F(KeeperClientTest, WorkersReadNothingUnlessTheyMay) {
  const std::string input = folder_ + "/input";
  std::ofstream(input) << "text";
  const UniqueFd before(::dup(STDIN_FILENO));
  const UniqueFd file(::open(input.c_str(), O_RDONLY | O_CLOEXEC));
  ::dup2(file.get(), STDIN_FILENO);
  StartKeeper();
  ::dup2(before.get(), STDIN_FILENO);
  for (const bool reads : {true, false}) {
    WorkerSpec spec = Shell(reads ? 1 : 0, "readlink /proc/self/fd/0");
    spec.reads_stdin = reads;
    Spawn(spec);
  }
  ASSERT_TRUE(RunUntilExited(0) && RunUntilExited(1));
  EXPECT_EQ(ReadFile(LogPath(0, "out")), "/dev/null\n");
  EXPECT_EQ(ReadFile(LogPath(1, "out")), input + "\n");
}

TEST_F(KeeperClientTest, AKeeperOfAnotherVersionIsLost) {
  std::string hello;
  keeper::AppendReport(keeper::HelloReport{.pid = 1, .version = 99}, hello);
  std::ofstream(folder_ + "/hello", std::ios::binary) << hello;
  const std::string path = folder_ + "/fsdp-keeper";
  std::ofstream(path) << "#!/bin/sh\ncat " << folder_ << "/hello >&3\nexec tail -f /dev/null\n";
  ::chmod(path.c_str(), 0755);
  StartKeeper(path);
  ASSERT_TRUE(RunUntil([&] { return !lost_.empty(); }));
  EXPECT_THAT(lost_[0], HasSubstr(path + " speaks version 99"));
  EXPECT_TRUE(hellos_.empty());
  EXPECT_TRUE(client_->has_ended());
}

// The loop runs only after the limit, as if this process had been stopped meanwhile.
TEST_F(KeeperClientTest, AHelloThatCameDuringAPauseCounts) {
  std::string hello;
  keeper::AppendReport(keeper::HelloReport{.pid = 1}, hello);
  std::ofstream(folder_ + "/hello", std::ios::binary) << hello;
  const std::string path = folder_ + "/fsdp-keeper";
  std::ofstream(path) << "#!/bin/sh\ncat " << folder_ << "/hello >&3\n: > " << folder_
                      << "/ready\nexec tail -f /dev/null\n";
  ::chmod(path.c_str(), 0755);
  StartKeeper(path, /*hello_limit=*/std::chrono::milliseconds(1));
  while (!std::filesystem::exists(folder_ + "/ready")) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  ASSERT_TRUE(RunUntil([&] { return !hellos_.empty() || !lost_.empty(); }));
  EXPECT_TRUE(lost_.empty()) << lost_[0];
  EXPECT_TRUE(client_->is_alive());
}

TEST_F(KeeperClientTest, AKeeperWithoutAHelloIsLost) {
  const std::string path = folder_ + "/fsdp-keeper";
  std::ofstream(path) << "#!/bin/sh\nexec tail -f /dev/null\n";
  ::chmod(path.c_str(), 0755);
  StartKeeper(path, /*hello_limit=*/std::chrono::milliseconds(20));
  ASSERT_TRUE(RunUntil([&] { return !lost_.empty(); }));
  EXPECT_THAT(lost_[0], HasSubstr("has not answered within"));
}

TEST_F(KeeperClientTest, WorkersInheritNoDescriptorOfOurParent) {
  const int left_open = ::open("/dev/null", O_RDONLY);  // Without O_CLOEXEC.
  const int number = ::fcntl(left_open, F_DUPFD, 200);
  StartKeeper();
  WorkerSpec spec = Shell(0, "ls /proc/self/fd");
  spec.wants_control_fd = false;
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_THAT(ReadFile(LogPath(0, "out")), testing::Not(HasSubstr(std::to_string(number) + "\n")));
  ::close(number);
  ::close(left_open);
}

TEST_F(KeeperClientTest, SaysHello) {
  StartKeeper();
  ASSERT_TRUE(RunUntil([&] { return !hellos_.empty(); }));
  EXPECT_EQ(hellos_[0].pid, client_->pid());
  EXPECT_EQ(hellos_[0].version, keeper::kProtocolVersion);
}

TEST_F(KeeperClientTest, ReportsExitCodesAndSignals) {
  StartKeeper();
  Spawn(Shell(0, "exit 0"));
  Spawn(Shell(1, "exit 7"));
  Spawn(Shell(2, "kill -SEGV $$"));
  Spawn(Shell(3, "kill -KILL $$"));
  ASSERT_TRUE(RunUntil([&] { return exited_.size() == 4 && all_gone_ > 0; }));
  EXPECT_EQ(exited_[0].exit_code, 0);
  EXPECT_EQ(exited_[1].exit_code, 7);
  EXPECT_EQ(exited_[1].signal, 0);
  EXPECT_EQ(exited_[2].signal, SIGSEGV);
  EXPECT_EQ(exited_[2].pid, spawned_[2].pid);
  EXPECT_EQ(exited_[3].signal, SIGKILL);
  EXPECT_FALSE(exited_[1].dumped_core || exited_[3].dumped_core);
  EXPECT_GT(exited_[0].seen_ns, 0);
}

// Whether a core is dumped depends on the limits and settings of the machine, so the expectation
// comes from a child of the test that dies alike; WaitStatusTest covers both cases.
TEST_F(KeeperClientTest, CoreDumpFlagIsThatOfTheWaitStatus) {
  const std::string crash = "cd $FOLDER && ulimit -c unlimited; kill -SEGV $$";
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setenv("FOLDER", folder_.c_str(), 1);
    ::execl("/bin/sh", "sh", "-c", crash.c_str(), nullptr);
    ::_exit(127);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ASSERT_TRUE(WIFSIGNALED(status)) << status;
  StartKeeper();
  Spawn(Shell(0, crash));
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, SIGSEGV);
  EXPECT_EQ(exited_[0].dumped_core, WCOREDUMP(status) != 0);
}

TEST_F(KeeperClientTest, SlotCanBeUsedAgainAfterItsExit) {
  StartKeeper();
  for (int i = 0; i < 3; ++i) {
    exited_.clear();
    Spawn(Shell(0, "exit " + std::to_string(i)));
    ASSERT_TRUE(RunUntilExited(0));
    EXPECT_EQ(exited_[0].exit_code, i);
  }
  Spawn(Shell(0, "exec tail -f /dev/null"));
  Spawn(Shell(0, "true"));
  ASSERT_TRUE(RunUntil([&] { return !spawn_failed_.empty(); }));
  EXPECT_EQ(spawn_failed_[0].error, EEXIST);
}

TEST_F(KeeperClientTest, MissingProgramIsNamed) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "");
  spec.argv = {"no-such-program"};
  Spawn(spec);
  spec.local_rank = 1;
  spec.argv = {"/none/trainer"};
  Spawn(spec);
  ASSERT_TRUE(RunUntil([&] { return spawn_failed_.size() == 2; }));
  std::sort(spawn_failed_.begin(), spawn_failed_.end(),
            [](const auto& a, const auto& b) { return a.local_rank < b.local_rank; });
  EXPECT_EQ(spawn_failed_[0].error, ENOENT);
  EXPECT_EQ(spawn_failed_[0].attempted, "run");
  EXPECT_EQ(spawn_failed_[0].path, "no-such-program");
  EXPECT_EQ(spawn_failed_[1].path, "/none/trainer");
  EXPECT_TRUE(spawned_.empty());
  EXPECT_TRUE(exited_.empty());
}

TEST_F(KeeperClientTest, FileWithoutPermissionIsNamed) {
  StartKeeper();
  const std::string file = folder_ + "/trainer";
  std::ofstream(file) << "text";
  WorkerSpec spec = Shell(0, "");
  spec.argv = {file};
  Spawn(spec);
  ASSERT_TRUE(RunUntil([&] { return spawn_failed_.size() == 1; }));
  EXPECT_EQ(spawn_failed_[0].error, EACCES);
  EXPECT_EQ(spawn_failed_[0].path, file);
}

TEST_F(KeeperClientTest, ScriptWithoutInterpreterRunsInTheShell) {
  StartKeeper();
  const std::string file = folder_ + "/script";
  std::ofstream(file) << "exit $1\n";
  ::chmod(file.c_str(), 0755);
  WorkerSpec spec = Shell(0, "");
  spec.argv = {file, "9"};
  Spawn(spec);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].exit_code, 9);
}

TEST_F(KeeperClientTest, AProgramThatCannotBeOpenedYetHoldsUpNobody) {
  const std::string program = folder_ + "/program";
  std::ofstream(program) << "#!/bin/sh\nexit 7\n";
  ASSERT_EQ(::chmod(program.c_str(), 0755), 0);
  // Whoever opens a file with a lease waits until that is given back.
  UniqueFd leased(::open(program.c_str(), O_RDONLY | O_CLOEXEC));
  ::signal(SIGIO, SIG_IGN);
  ASSERT_EQ(::fcntl(leased.get(), F_SETLEASE, F_WRLCK), 0) << std::strerror(errno);
  StartKeeper();
  WorkerSpec spec = Shell(0, "");
  spec.argv = {program};
  Spawn(spec);
  Spawn(Shell(1, "exit 3"));
  ASSERT_TRUE(RunUntilExited(1));
  EXPECT_EQ(exited_[1].exit_code, 3);
  EXPECT_EQ(spawned_.count(0), 0u);
  leased.reset();
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].exit_code, 7);
}

TEST_F(KeeperClientTest, ManyStartsAtOnceAreToldApart) {
  constexpr int kWorkers = 96;
  const std::string no_format = folder_ + "/no_format";
  std::ofstream(no_format) << "exit $1\n";
  ASSERT_EQ(::chmod(no_format.c_str(), 0755), 0);
  StartKeeper();
  for (int rank = 0; rank < kWorkers; ++rank) {
    WorkerSpec spec = Shell(rank, "exit " + std::to_string(rank));
    if (rank % 3 == 1) {
      spec.argv = {"no-such-program-" + std::to_string(rank)};
    } else if (rank % 3 == 2) {
      spec.argv = {no_format, std::to_string(rank)};
    }
    Spawn(spec);
  }
  ASSERT_TRUE(RunUntil([&] { return exited_.size() + spawn_failed_.size() == kWorkers; }));
  for (const auto& [rank, exit] : exited_) {
    EXPECT_NE(rank % 3, 1);
    EXPECT_EQ(exit.exit_code, rank);
  }
  EXPECT_EQ(spawn_failed_.size(), kWorkers / 3u);
  for (const keeper::SpawnFailedReport& failed : spawn_failed_) {
    EXPECT_EQ(failed.error, ENOENT);
    EXPECT_EQ(failed.path, "no-such-program-" + std::to_string(failed.local_rank));
  }
}

TEST_F(KeeperClientTest, ImpossibleSpecsAreRefusedBeforeTheyAreSent) {
  StartKeeper();
  WorkerSpec spec = Shell(0, "true");
  spec.argv = {};
  EXPECT_EQ(client_->Spawn(spec).code(), absl::StatusCode::kInvalidArgument);
  spec.argv = {"x", std::string(keeper::kMaxCommandBytes, 'y')};
  EXPECT_EQ(client_->Spawn(spec).code(), absl::StatusCode::kInvalidArgument);
  spec.argv = {std::string("x\0y", 3)};
  EXPECT_EQ(client_->Spawn(spec).code(), absl::StatusCode::kInvalidArgument);
  spec = Shell(-2, "true");
  EXPECT_EQ(client_->Spawn(spec).code(), absl::StatusCode::kInvalidArgument);
  Spawn(Shell(0, "exit 3"));
  ASSERT_TRUE(RunUntilExited(0));
}

TEST_F(KeeperClientTest, WorkerHasItsOwnSessionDefaultSignalsAndOnlyItsEnvironment) {
  StartKeeper();
  Spawn(Shell(0,
              "grep -E '^(SigBlk|SigIgn)' /proc/self/status; cut -d' ' -f6 /proc/$$/stat; echo $$; "
              "env | sort"));
  ASSERT_TRUE(RunUntilExited(0));
  const std::string out = ReadFile(LogPath(0, "out"));
  EXPECT_THAT(out, HasSubstr("SigBlk:\t0000000000000000\n"));
  // Bits above 31 are libc's own signals, which a process inherits from whoever started the tests.
  EXPECT_THAT(out, testing::ContainsRegex("SigIgn:\t[0-9a-f]{8}[08]0000000\n"));
  const std::string pid = std::to_string(spawned_[0].pid);
  EXPECT_THAT(out, HasSubstr(pid + "\n" + pid + "\n"));
  EXPECT_THAT(out, HasSubstr("FSDPRUN_CONTROL_FD="));
  EXPECT_THAT(out, testing::Not(HasSubstr("HOME=")));
}

/// For descriptors above 9, which dash's redirections do not know.
WorkerSpec Bash(WorkerSpec spec) {
  spec.argv[0] = "bash";
  return spec;
}

TEST_F(KeeperClientTest, ControlRecordsGoBothWays) {
  StartKeeper();
  Spawn(Bash(
      Shell(0, "eval \"echo hi >&$FSDPRUN_CONTROL_FD\"; eval \"head -n1 <&$FSDPRUN_CONTROL_FD\"")));
  ASSERT_TRUE(RunUntil([&] { return !records_[0].empty(); }));
  EXPECT_EQ(records_[0][0], "hi");
  client_->SendControl(0, "{\"type\":\"stop\"}");
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(ReadFile(LogPath(0, "out")), "{\"type\":\"stop\"}\n");
}

TEST_F(KeeperClientTest, AnOrderAboutAnotherLifeDoesNothing) {
  StartKeeper();
  WorkerSpec spec = Bash(
      Shell(0, "eval \"echo hi >&$FSDPRUN_CONTROL_FD\"; eval \"head -n1 <&$FSDPRUN_CONTROL_FD\""));
  spec.life = 5;
  Spawn(spec);
  ASSERT_TRUE(RunUntil([&] { return !records_[0].empty(); }));
  client_->Signal(0, SIGKILL, /*group=*/true, /*life=*/4);
  client_->Signal(keeper::kAllRanks, SIGKILL, /*group=*/true, /*life=*/6);
  client_->SendControl(0, "of the one before", /*life=*/4);
  client_->SendControl(0, "of this one", /*life=*/5);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].signal, 0);
  EXPECT_EQ(ReadFile(LogPath(0, "out")), "of this one\n");
}

TEST_F(KeeperClientTest, ReportsNameTheLifeThatTheyAreAbout) {
  StartKeeper();
  WorkerSpec first = Shell(0, "echo out");
  first.life = 5;
  Spawn(first);
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 1; }));
  EXPECT_EQ(spawned_[0].life, 5u);
  EXPECT_EQ(exited_[0].life, 5u);
  EXPECT_EQ(gone_life_, 5u);
  WorkerSpec second = Shell(0, "exit 1");
  second.life = 6;
  second.argv[0] = "/does/not/exist";
  Spawn(second);
  ASSERT_TRUE(RunUntil([&] { return !spawn_failed_.empty(); }));
  EXPECT_EQ(spawn_failed_[0].life, 6u);
  client_->KillAll(/*life=*/7);
  ASSERT_TRUE(RunUntil([&] { return all_gone_ == 2; }));
  EXPECT_EQ(gone_life_, 7u);
}

TEST_F(KeeperClientTest, OverlongControlRecordsAreDroppedWithANote) {
  StartKeeper();
  Spawn(Bash(
      Shell(0,
            "eval \"exec 9>&$FSDPRUN_CONTROL_FD\"; (head -c 50000 /dev/zero | tr '\\0' x; echo; "
            "echo next) >&9")));
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(records_[0], std::vector<std::string>{"next"});
  ASSERT_FALSE(notes_.empty());
  EXPECT_THAT(notes_[0], HasSubstr("8192"));
}

TEST_F(KeeperClientTest, SignalsLeaderOrGroup) {
  StartKeeper();
  const std::string child =
      "(trap 'echo child >> $FOLDER/got; exit' TERM; echo >> $FOLDER/ready; while :; do read x < "
      "$FOLDER/fifo; done) & ";
  ASSERT_EQ(::mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  const std::string leader =
      "trap 'echo leader >> $FOLDER/got; wait; exit 5' TERM; echo >> $FOLDER/ready; wait";
  Spawn(Shell(0, child + leader));
  ReadPids("ready", 2);
  client_->Signal(keeper::kAllRanks, SIGTERM, /*group=*/true);
  ASSERT_TRUE(RunUntilExited(0));
  EXPECT_EQ(exited_[0].exit_code, 5);
  const std::string got = ReadFile(folder_ + "/got");
  EXPECT_THAT(got, HasSubstr("leader\n"));
  EXPECT_THAT(got, HasSubstr("child\n"));
}

}  // namespace
}  // namespace fsdprun
