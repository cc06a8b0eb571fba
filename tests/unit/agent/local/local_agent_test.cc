#include "agent/local/local_agent.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "agent/process/orphans.h"
#include "agent/process/process_scan.h"
#include "tests/unit/base/loop_waiter.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

/// Keeps what the agent says and lets a test play the coordinator.
class FakeLink : public CoordinatorLink {
 public:
  FakeLink(EventLoop& loop, LoopWaiter& waiter) : loop_(loop), waiter_(waiter) {}
  void SetCallbacks(Callbacks callbacks) override { callbacks_ = std::move(callbacks); }
  void Open(int /*patience*/) override {
    loop_.Post([this] { callbacks_.on_up(); });
  }
  void Send(const FromAgent& message) override {
    said_.push_back(message);
    if (on_said_) {
      on_said_(message);
    }
    waiter_.Notice();
  }
  void SendAside(const v1::FromNodeAside& aside) override {
    asides_.push_back(aside);
    waiter_.Notice();
  }
  size_t unwritten() const override { return 0; }
  void Close() override {}

  void Ask(const v1::ToNodeAside& aside) {
    loop_.Post([this, aside] {
      callbacks_.on_aside(aside);
      waiter_.Notice();
    });
  }
  const std::vector<v1::FromNodeAside>& asides() const { return asides_; }
  void Lose() {
    loop_.Post([this] {
      callbacks_.on_lost({absl::UnavailableError("reset")});
      waiter_.Notice();
    });
  }
  void Order(uint64_t generation, CoordinatorMessage message) {
    loop_.Post([this, generation, message = std::move(message)] {
      callbacks_.on_message(ToAgent{Incarnation(1), Generation(generation), message});
      waiter_.Notice();
    });
  }
  const std::vector<FromAgent>& said() const { return said_; }
  template <class Message>
  int Count() const {
    return static_cast<int>(std::count_if(said_.begin(), said_.end(), [](const FromAgent& m) {
      return std::holds_alternative<Message>(m.message);
    }));
  }

  std::function<void(const FromAgent&)> on_said_;

 private:
  EventLoop& loop_;
  LoopWaiter& waiter_;
  Callbacks callbacks_;
  std::vector<FromAgent> said_;
  std::vector<v1::FromNodeAside> asides_;
};

bool IsAlive(pid_t pid) {
  ProcessInfo info;
  return ReadProcess(pid, info) && !info.IsDead();
}

pid_t ReadParent(pid_t pid) {
  ProcessInfo info;
  return ReadProcess(pid, info) ? info.parent : 0;
}

std::set<pid_t> ChildrenOf(pid_t parent) {
  std::vector<ProcessInfo> processes;
  ScanProcesses(processes);
  std::set<pid_t> children;
  for (const ProcessInfo& process : processes) {
    if (process.parent == parent) {
      children.insert(process.pid);
    }
  }
  return children;
}

/// An agent with a real keeper and one real worker, which runs until it is killed unless a test
/// starts another program.
class LocalAgentTest : public testing::Test {
 protected:
  LocalAgentTest()
      : folder_(testing::TempDir() + "local_agent_" + std::to_string(::getpid())),
        link_(loop_, waiter_),
        store_(loop_, {"127.0.0.1", "127.0.0.1"}) {
    MakeAgent(folder_, {"tail", "-f", "/dev/null"});
  }
  void MakeAgent(const std::string& run_dir, const std::vector<std::string>& command,
                 const OutputOptions& output = {}) {
    LocalAgent::Options options;
    options.spec.node.incarnation = Incarnation(1);
    options.keeper_path = FSDPRUN_KEEPER_BINARY;
    options.base_environment = {{"PATH", "/usr/bin:/bin"}};
    options.command = [command](int) { return command; };
    options.run_id = "run";
    options.dirs.logs = run_dir;
    options.dirs.vitals = folder_ + "/vitals";
    options.output = output;
    LocalAgent::Hooks hooks;
    hooks.sink.write = [](keeper::Stream, const std::string&, absl::string_view) {};
    hooks.sink.has_room = [](keeper::Stream) { return true; };
    hooks.sink.on_missing = [](keeper::Stream, const std::string&, const MissingOutput&) {};
    hooks.on_exit = [this](int code, const std::string&) {
      exit_code_ = code;
      waiter_.Notice();
    };
    agent_ =
        std::make_unique<LocalAgent>(loop_, std::move(options), std::move(hooks), link_, store_);
  }
  ~LocalAgentTest() override {
    agent_.reset();
    waiter_.PollUntil([] { return KillOrphans({}) == 0; });
    RemoveFolder(folder_);
  }

  /// Runs the loop until `condition` holds; it is evaluated again when the agent has sent a
  /// message, executed an order or exited.
  bool RunUntil(const std::function<bool()>& condition) { return waiter_.RunUntil(condition); }

  void Admit() {
    agent_->Start();
    ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentJoined>() == 1; }));
    link_.Order(0, AdmitAgent{});
    ASSERT_TRUE(RunUntil([&] { return agent_->was_admitted(); }));
  }
  /// Generations begin with 1 and follow each other.
  void RunGeneration(int generation) {
    RankAssignment assignment;
    assignment.generation = Generation(generation);
    assignment.world_of_attempt = generation - 1;
    link_.Order(generation, PrepareGeneration{assignment});
    ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentPrepared>() == generation; }));
    link_.Order(generation, CommitGeneration{{"127.0.0.1", 1}});
    ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentStarted>() == generation; }));
  }

  const std::string folder_;
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  FakeLink link_;
  WorkerStore store_;
  std::optional<int> exit_code_;
  std::unique_ptr<LocalAgent> agent_;
};

/// An agent that may be replaced, whose workers' standard output is kept for the next one until it
/// is where it is kept for good.
class SpooledOutputTest : public LocalAgentTest {
 protected:
  void Make(const std::vector<std::string>& command) {
    std::filesystem::create_directories(folder_ + "/spool");
    LocalAgent::Options options;
    options.spec.node.incarnation = Incarnation(1);
    options.keeper_path = FSDPRUN_KEEPER_BINARY;
    options.keeper_socket = {.path = folder_ + "/keeper", .grace = std::chrono::seconds(1)};
    options.base_environment = {{"PATH", "/usr/bin:/bin"}};
    options.command = [command](int) { return command; };
    options.run_id = "run";
    options.dirs = {.logs = folder_ + "/logs", .spool = folder_ + "/spool"};
    options.output.names_files = true;  // And none of this worker.
    LocalAgent::Hooks hooks;
    hooks.sink.write = [this](keeper::Stream, const std::string&, absl::string_view lines) {
      text_.append(lines.data(), lines.size());
      waiter_.Notice();
    };
    hooks.sink.has_room = [this](keeper::Stream) { return has_room_; };
    hooks.sink.on_missing = [](keeper::Stream, const std::string&, const MissingOutput&) {};
    hooks.kept_output = [this](keeper::Stream) {
      was_asked_ = true;
      waiter_.Notice();
      return LocalAgent::Hooks::Kept{.passed = text_.size(), .kept = is_kept_ ? text_.size() : 0};
    };
    hooks.on_exit = [](int, const std::string&) {};
    agent_ =
        std::make_unique<LocalAgent>(loop_, std::move(options), std::move(hooks), link_, store_);
  }

  /// If anything waits to be kept.
  void RunUntilAsked() {
    const MonoTime limit = MonoNow() + std::chrono::milliseconds(100);
    waiter_.PollUntil([this, limit] { return was_asked_ || MonoNow() >= limit; });
  }
  /// Of all files.
  size_t SpooledBytes() const {
    size_t bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_ + "/spool")) {
      bytes += entry.is_regular_file() ? entry.file_size() : 0;
    }
    return bytes;
  }

  std::string text_;
  bool has_room_ = false;
  bool is_kept_ = false;
  /// Whether it is kept.
  bool was_asked_ = false;
};

TEST_F(SpooledOutputTest, WhatIsNotKeptYetOfAGenerationIsNoneOfTheNext) {
  constexpr size_t kBytes = 3u << 20;
  Make({"sh", "-c", "yes | head -c " + std::to_string(kBytes) + "; exec tail -f /dev/null"});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(waiter_.PollUntil([this] { return SpooledBytes() == kBytes; }));
  RankAssignment next;
  next.generation = Generation(2);
  next.world_of_attempt = 1;
  link_.Order(2, PrepareGeneration{next});
  ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentPrepared>() == 2; }));
  has_room_ = true;
  agent_->ResumeOutput();
  ASSERT_TRUE(RunUntil([&] { return text_.size() == kBytes; }));
  has_room_ = false;
  link_.Order(2, CommitGeneration{{"127.0.0.1", 1}});
  ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentStarted>() == 2; }));
  is_kept_ = true;
  was_asked_ = false;
  RunUntilAsked();
  has_room_ = true;
  agent_->ResumeOutput();
  ASSERT_TRUE(RunUntil([&] { return text_.size() == 2 * kBytes; }));
  EXPECT_EQ(text_.find('\0'), std::string::npos);
}

TEST_F(LocalAgentTest, TellsHowItsWorkersAreAsLongAsThatIsWanted) {
  MakeAgent(folder_, {"sh", "-c",
                      "printf '\\001' | dd of=$FSDPRUN_VITALS_FILE conv=notrunc 2>/dev/null; "
                      "exec tail -f /dev/null"});
  Admit();
  RunGeneration(1);
  v1::ToNodeAside ask;
  ask.mutable_vitals()->set_every_ns(1);
  link_.Ask(ask);
  const auto latest = [this] {
    return link_.asides().empty() ? v1::NodeVitals() : link_.asides().back().vitals();
  };
  ASSERT_TRUE(
      RunUntil([&] { return latest().workers_size() == 1 && latest().workers(0).has_own(); }));
  EXPECT_EQ(latest().generation(), 1u);
  EXPECT_EQ(latest().workers(0).own().step(), -1);
  EXPECT_EQ(ReadParent(static_cast<pid_t>(latest().workers(0).pid())), agent_->keeper_pid());
  // Of the next generation nothing is known but what it says itself.
  ::kill(static_cast<pid_t>(latest().workers(0).pid()), SIGKILL);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkersStopped>() == 1; }));
  RunGeneration(2);
  ASSERT_TRUE(RunUntil([&] { return latest().generation() == 2 && latest().workers_size() == 1; }));
  ASSERT_TRUE(RunUntil([&] { return latest().workers(0).has_own(); }));
  link_.Lose();
  ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentJoined>() == 2; }));
  const size_t told = link_.asides().size();
  const MonoTime until = MonoNow() + 3 * VitalsBeat::kLeastPeriod;
  waiter_.PollUntil([until] { return MonoNow() >= until; });
  EXPECT_EQ(link_.asides().size(), told);
}

// An orphan that survives the first sweep causes a second one, which runs when the next keeper is
// already there.
TEST_F(LocalAgentTest, OrphanSweepSparesTheNextKeeper) {
  Admit();
  RunGeneration(1);
  pid_t orphan = 0;
  link_.on_said_ = [&orphan](const FromAgent& message) {
    if (std::holds_alternative<NodeFaulted>(message.message)) {
      orphan = ::fork();
      if (orphan == 0) {
        ::execl("/usr/bin/tail", "tail", "-f", "/dev/null", nullptr);
        ::_exit(127);
      }
    }
  };
  const pid_t first = agent_->keeper_pid();
  ::kill(first, SIGKILL);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkersStopped>() == 1; }));
  ASSERT_GT(orphan, 0);
  EXPECT_FALSE(IsAlive(orphan));
  const pid_t next = agent_->keeper_pid();
  EXPECT_NE(next, first);
  RunGeneration(2);
  EXPECT_EQ(agent_->keeper_pid(), next);
  EXPECT_TRUE(IsAlive(next));
}

// The writer may end before, while or after the agent looks for what its keeper has left.
TEST_F(LocalAgentTest, NoLogWriterIsLeftAsAZombieWhenItsKeeperDies) {
  MakeAgent(folder_, {"tail", "-f", "/dev/null"}, {.names_directory = true});
  Admit();
  for (int generation = 1; generation <= 10; ++generation) {
    RunGeneration(generation);
    const pid_t keeper = agent_->keeper_pid();
    ASSERT_EQ(ChildrenOf(keeper).size(), 2u) << "a worker and the log writer";
    ::kill(keeper, SIGKILL);
    ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkersStopped>() == generation; }));
  }
  EXPECT_TRUE(waiter_.PollUntil(
      [this] { return ChildrenOf(::getpid()) == std::set<pid_t>{agent_->keeper_pid()}; }));
}

// As after a restart of the agent, whose last keeper had left a log writer that hung.
TEST_F(LocalAgentTest, ALogWriterOfAnEarlierAgentIsReaped) {
  int ready[2];
  ASSERT_EQ(::pipe2(ready, O_CLOEXEC), 0);
  const UniqueFd read_end(ready[0]);
  UniqueFd write_end(ready[1]);
  const pid_t writer = ::fork();
  if (writer == 0) {
    ::prctl(PR_SET_NAME, keeper::kLogWriterName);
    ::close(ready[1]);
    ::pause();
    ::_exit(0);
  }
  write_end.reset();
  char byte = 0;
  ASSERT_EQ(::read(read_end.get(), &byte, 1), 0);
  Admit();
  EXPECT_EQ(ChildrenOf(::getpid()).count(writer), 1u);
  ::kill(writer, SIGKILL);
  EXPECT_TRUE(waiter_.PollUntil([&] { return ChildrenOf(::getpid()).count(writer) == 0; }));
}

TEST_F(LocalAgentTest, RequestToRejoinIsNoRelease) {
  Admit();
  link_.Order(0, RejectAgent{"given up", /*rejoin=*/true});
  ASSERT_TRUE(RunUntil([&] { return link_.Count<AgentJoined>() == 2; }));
  EXPECT_TRUE(agent_->has_lost_coordinator());
  EXPECT_FALSE(exit_code_.has_value());
  link_.Order(0, RejectAgent{"no", /*rejoin=*/false});
  ASSERT_TRUE(RunUntil([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(exit_code_, 1);
  EXPECT_FALSE(agent_->has_lost_coordinator());
}

TEST_F(LocalAgentTest, StderrTailReachesTheCoordinatorWithoutLogFiles) {
  MakeAgent("/dev/null/no folder can be made here", {"sh", "-c", "echo last words >&2; exit 3"});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.exit_code, 3);
      EXPECT_EQ(exited->exit.stderr_tail, std::vector<std::string>{"last words"});
    }
  }
}

TEST_F(LocalAgentTest, ErrorFileTellsWhenTheWorkerFailed) {
  MakeAgent(folder_, {"sh", "-c",
                      R"(echo '{"message": "ValueError: x"}' > $TORCHELASTIC_ERROR_FILE
                         touch -d '1 second ago' $TORCHELASTIC_ERROR_FILE
                         exit 1)"});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.error_message, "ValueError: x");
      EXPECT_GE(exited->age, std::chrono::seconds(1));
    }
  }
}

// Without a folder for each worker: then none is made for one that neither prints nor fails.
TEST_F(LocalAgentTest, AnErrorFileIsPutBesideTheLogsOfItsWorker) {
  MakeAgent(
      folder_,
      {"sh", "-c", R"([ "$TORCHELASTIC_ERROR_FILE" = )" + folder_ + R"(/attempt_0/error_0.json ] &&
                echo '{"message": "ValueError: x"}' > $TORCHELASTIC_ERROR_FILE; exit 1)"});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.error_message, "ValueError: x");
      EXPECT_EQ(exited->exit.log_path, folder_ + "/attempt_0/0/");
    }
  }
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/attempt_0/0/error.json"));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/attempt_0/error_0.json"));
}

TEST_F(LocalAgentTest, AWorkerHasNoFolderThatNobodyAskedFor) {
  MakeAgent(folder_, {"sh", "-c", "[ -d ${TORCHELASTIC_ERROR_FILE%/*} ] && exit 7"});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/attempt_0/0"));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.exit_code, 7) << "the error file could not have been written";
    }
  }
}

TEST_F(LocalAgentTest, AWorkerHasTheFolderThatTheUserAskedFor) {
  MakeAgent(folder_, {"sh", "-c", "cd ${TORCHELASTIC_ERROR_FILE%/0/error.json}/0 && exit 7"},
            {.names_directory = true});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.exit_code, 7);
    }
  }
}

// The loop stands still (as after SIGSTOP) from before the worker's exit is read until long after
// the limit for the error file, which the file thread has read meanwhile.
TEST_F(LocalAgentTest, ErrorFileThatWasReadDuringAPauseIsUsed) {
  MakeAgent(folder_, {"sh", "-c",
                      "while [ ! -e " + folder_ +
                          R"(/go ]; do sleep 0.01; done
                    echo '{"message": "ValueError: x"}' > $TORCHELASTIC_ERROR_FILE
                    exit 1)"});
  Admit();
  RunGeneration(1);
  const std::set<pid_t> workers = ChildrenOf(agent_->keeper_pid());
  loop_.Post([&] {
    std::ofstream(folder_ + "/go") << "go";
    // The keeper reaps a worker after it has reported its death.
    while (ChildrenOf(agent_->keeper_pid()) == workers) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    // Posted twice: the keeper's socket has its turn in between.
    loop_.Post(
        [&] { loop_.Post([] { std::this_thread::sleep_for(std::chrono::milliseconds(1500)); }); });
  });
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkerExited>() == 1; }));
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      EXPECT_EQ(exited->exit.error_message, "ValueError: x");
    }
  }
}

// The worker puts a FIFO in the place of its log, whose opening never returns; the error file is to
// be read after that.
TEST_F(LocalAgentTest, ExitIsReportedWithoutItsErrorFileWhenTheFileSystemHangs) {
  const std::string log = folder_ + "/attempt_0/0/stdout.log";
  MakeAgent(folder_,
            {"sh", "-c",
             "rm " + log + " && mkfifo " + log +
                 " && echo '{\"message\": \"boom\"}' > $TORCHELASTIC_ERROR_FILE; echo "
                 "shown; echo last >&2; exit 3"},
            {.names_directory = true});
  Admit();
  RunGeneration(1);
  ASSERT_TRUE(RunUntil([&] { return link_.Count<WorkersStopped>() == 1; }));
  std::vector<std::string> order;
  for (const FromAgent& message : link_.said()) {
    if (const auto* exited = std::get_if<WorkerExited>(&message.message)) {
      order.push_back("exited");
      EXPECT_EQ(exited->exit.exit_code, 3);
      EXPECT_EQ(exited->exit.error_message, "");
      EXPECT_EQ(exited->exit.stderr_tail, std::vector<std::string>{"last"});
    } else if (std::holds_alternative<WorkersStopped>(message.message)) {
      order.push_back("stopped");
    }
  }
  EXPECT_EQ(order, (std::vector<std::string>{"exited", "stopped"}));
  const UniqueFd writer(::open(log.c_str(), O_RDWR | O_CLOEXEC));  // Ends the hang.
  ASSERT_TRUE(writer.valid());
  agent_.reset();
}

TEST_F(LocalAgentTest, ErrorOfALinkIsForgottenWhenTheCoordinatorAnswersAgain) {
  Admit();
  link_.Lose();
  ASSERT_TRUE(RunUntil([&] { return !agent_->last_link_error().ok(); }));
  link_.Order(0, AdmitAgent{});
  EXPECT_TRUE(RunUntil([&] { return agent_->last_link_error().ok(); }));
}

TEST_F(LocalAgentTest, NoChildIsLeftAfterTheExit) {
  Admit();
  RunGeneration(1);
  link_.Order(0, ReleaseAgent{3, "over"});
  ASSERT_TRUE(RunUntil([&] { return exit_code_.has_value(); }));
  EXPECT_EQ(exit_code_, 3);
  EXPECT_TRUE(ListChildren().empty());
}

}  // namespace
}  // namespace fsdprun
