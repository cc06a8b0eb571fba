// many_agents AGENTS PROCESSES
//
// A coordinator and so many agents, spread over so many processes, on this machine: NodeMachine,
// GrpcLink and codecs as in fsdprun, over loopback; instead of keepers and workers there is nobody.
// Prints one line of JSON: how long all took to form a generation from the moment at which they
// were told to join, how long it took until all knew of the failure of one, and what that cost the
// coordinator's process. A child process is started as `many_agents --agents FIRST COUNT PORT`,
// says `ready`, joins when it is told to, and says when its agents were told to stop.

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "agent/node/node_machine.h"
#include "agent/rpc/grpc_link.h"
#include "agent/store/store_thread.h"
#include "base/check.h"
#include "base/descriptor_limit.h"
#include "base/event_loop.h"
#include "base/machine_driver.h"
#include "launcher/run/coordinator_host.h"

namespace fsdprun {
namespace {

constexpr char kRunId[] = "many";
constexpr char kToken[] = "secret";
/// Before which nothing fails, so that the beats of all have come to rest.
constexpr Duration kRunsFor = std::chrono::seconds(3);
constexpr int kWorkers = 8;

int64_t NowNs() { return MonoNow().time_since_epoch().count(); }

/// One agent without a keeper: what a keeper would do has been done at once.
class StubbedAgent : private MachineDriver<NodeMachine>::Executor {
 public:
  StubbedAgent(EventLoop& loop, int number, int port, std::function<void()> on_stop)
      : loop_(loop),
        machine_(Spec(number, port)),
        link_(loop, GrpcLink::Options{.targets = {absl::StrCat("127.0.0.1:", port)},
                                      .job_id = kRunId,
                                      .token = [] { return absl::StatusOr<std::string>(kToken); }}),
        on_stop_(std::move(on_stop)) {
    CoordinatorLink::Callbacks callbacks;
    callbacks.on_up = [this] { driver_.Feed(node::StreamUp{}); };
    callbacks.on_message = [this](const ToAgent& message) { driver_.Feed(message); };
    callbacks.on_lost = [this](const LinkLoss& loss) {
      driver_.Feed(node::StreamLost{std::string(loss.status.message()), loss.nothing_listens});
    };
    link_.SetCallbacks(std::move(callbacks));
  }

  void Start() { driver_.Feed(node::Boot{}); }
  void FailWorker() {
    WorkerExit exit;
    exit.exit_code = 1;
    driver_.Feed(node::WorkerReaped{machine_.generation(), exit});
  }

 private:
  static NodeSpec Spec(int number, int port) {
    NodeSpec spec;
    spec.node.incarnation = Incarnation(static_cast<uint64_t>(number + 1) * 0x9e3779b97f4a7c15 | 1);
    spec.node.name = absl::StrCat("node-", number);
    spec.node.address = "127.0.0.1";
    spec.node.local_world_size = kWorkers;
    spec.coordinator_endpoint = absl::StrCat("127.0.0.1:", port);
    return spec;
  }

  MonoTime Now() override { return MonoNow(); }
  void Persist(const NodeRecord& /*record*/) override {}
  void WakeAt(MonoTime at) override {
    loop_.Cancel(timer_);
    if (at != MonoTime::max()) {
      timer_ = loop_.At(at, [this] { driver_.Feed(node::TimerDue{}); });
    }
  }
  void Send(FromAgent& message) override { link_.Send(message); }
  void Execute(node::Action& action) override {
    std::visit([this](const auto& what) { Do(what); }, action);
  }
  void Hear(const node::News& /*news*/) override {}

  void Do(const node::StartKeeper&) { driver_.Feed(node::KeeperReady{}); }
  void Do(const node::ReconnectStream& reconnect) {
    loop_.At(MonoNow() + reconnect.delay,
             [this, patience = reconnect.patience] { link_.Open(patience); });
  }
  void Do(const node::PrepareNode& prepare) {
    std::optional<StoreEndpoint> store;
    if (prepare.reset_store) {
      store = StoreEndpoint{"127.0.0.1", 29500};
    }
    driver_.Feed(node::LogsAndStoreReady{prepare.assignment.generation, store});
  }
  void Do(const node::SpawnWorkers& spawn) {
    std::vector<int64_t> pids(kWorkers);
    for (int i = 0; i < kWorkers; ++i) {
      pids[i] = 1000 + i;
    }
    driver_.Feed(node::WorkersSpawned{spawn.assignment.generation, pids});
  }
  void Do(const node::AdoptWorkers&) {}
  void Do(const node::SignalWorkers& signal) {
    on_stop_();
    EndAll(signal.generation, signal.signal);
  }
  void Do(const node::NotifyWorkers&) {}
  void Do(const node::KillWorkers& kill) {
    on_stop_();
    EndAll(kill.generation, SIGKILL);
  }
  void Do(const node::KillOrphans& kill) { driver_.Feed(node::AllWorkersGone{kill.generation}); }
  void Do(const node::Exit&) {}

  void EndAll(Generation generation, int signal) {
    for (int i = 0; i < kWorkers; ++i) {
      WorkerExit exit;
      exit.local_rank = i;
      exit.signal = signal;
      driver_.Feed(node::WorkerReaped{generation, exit});
    }
    driver_.Feed(node::AllWorkersGone{generation});
  }

  EventLoop& loop_;
  NodeMachine machine_;
  MachineDriver<NodeMachine> driver_{machine_, *this};
  GrpcLink link_;
  const std::function<void()> on_stop_;
  EventLoop::TimerId timer_ = 0;
};

/// A child: `count` agents, which do what they are told on standard input.
int RunAgents(int first, int count, int port) {
  RaiseDescriptorLimit();
  EventLoop loop;
  int told = 0;
  std::vector<std::unique_ptr<StubbedAgent>> agents;
  for (int i = first; i < first + count; ++i) {
    agents.push_back(std::make_unique<StubbedAgent>(loop, i, port, [&] {
      if (++told == count) {
        std::printf("stopped %lld\n", static_cast<long long>(NowNs()));
        std::fflush(stdout);
      }
    }));
  }
  std::printf("ready\n");
  std::fflush(stdout);
  loop.Watch(STDIN_FILENO, EPOLLIN, [&](uint32_t) {
    char order = 0;
    if (::read(STDIN_FILENO, &order, 1) != 1) {
      loop.Stop();
    } else if (order == 'j') {
      for (const auto& agent : agents) {
        agent->Start();
      }
    } else if (order == 'f') {
      agents.front()->FailWorker();
    }
  });
  loop.Run();
  std::_Exit(0);  // Streams that are open are not worth an orderly end.
}

struct Child {
  pid_t pid = 0;
  int orders = -1;
  FILE* words = nullptr;
};

Child StartChild(const char* program, int first, int count, int port) {
  int orders[2];
  int words[2];
  FSDPRUN_CHECK(::pipe2(orders, O_CLOEXEC) == 0 && ::pipe2(words, O_CLOEXEC) == 0, "out of pipes");
  const std::vector<std::string> arguments{program, "--agents", std::to_string(first),
                                           std::to_string(count), std::to_string(port)};
  Child child;
  child.pid = ::fork();
  FSDPRUN_CHECK(child.pid >= 0, "cannot fork");
  if (child.pid == 0) {
    ::dup2(orders[0], STDIN_FILENO);
    ::dup2(words[1], STDOUT_FILENO);
    std::vector<char*> argv;
    for (const std::string& argument : arguments) {
      argv.push_back(const_cast<char*>(argument.c_str()));
    }
    argv.push_back(nullptr);
    ::execv(program, argv.data());
    std::_Exit(127);
  }
  ::close(orders[0]);
  ::close(words[1]);
  child.orders = orders[1];
  child.words = ::fdopen(words[0], "r");
  return child;
}

std::string Line(const Child& child) {
  char line[128] = "";
  FSDPRUN_CHECK(std::fgets(line, sizeof(line), child.words) != nullptr, "a child has ended");
  return line;
}

void Tell(const Child& child, char order) {
  FSDPRUN_CHECK(::write(child.orders, &order, 1) == 1, "a child has ended");
}

double CpuSeconds() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
         static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

double PeakMiB() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

class Bench {
 public:
  Bench(const char* program, int agents, int processes)
      : agents_(agents),
        port_(loop_, StoreServer::Limits{},
              [this](UniqueFd connection) { host_.AddConnection(std::move(connection)); }),
        host_(loop_, Options(agents), Hooks()) {
    FSDPRUN_CHECK(host_.Start().ok(), "gRPC does not start");
    const absl::StatusOr<int> port = port_.Listen("127.0.0.1", 0);
    FSDPRUN_CHECK(port.ok(), "cannot listen");
    for (int i = 0; i < processes; ++i) {
      const int first = agents * i / processes;
      children_.push_back(StartChild(program, first, agents * (i + 1) / processes - first, *port));
    }
    for (const Child& child : children_) {
      Line(child);
    }
  }

  void Run() {
    began_ns_ = NowNs();
    cpu_before_ = CpuSeconds();
    for (const Child& child : children_) {
      Tell(child, 'j');
    }
    loop_.Run();
    int64_t known_ns = 0;
    for (const Child& child : children_) {
      known_ns = std::max<int64_t>(known_ns, std::atoll(Line(child).c_str() + 8));
    }
    std::printf(
        "{\"agents\": %d, \"formed_s\": %.3f, \"known_s\": %.3f, \"cpu_to_form_s\": %.3f, "
        "\"cpu_running_per_s\": %.4f, \"peak_mib\": %.1f, \"losses\": %d}\n",
        agents_, Seconds(formed_ns_ - began_ns_), Seconds(known_ns - failed_ns_), cpu_to_form_,
        cpu_running_ / ToSeconds(kRunsFor), PeakMiB(), losses_);
    std::fflush(stdout);
    for (const Child& child : children_) {
      ::close(child.orders);
      ::waitpid(child.pid, nullptr, 0);
    }
    std::_Exit(0);
  }

 private:
  static double Seconds(int64_t ns) { return static_cast<double>(ns) / 1e9; }
  static CoordinatorHost::Options Options(int agents) {
    CoordinatorHost::Options options;
    options.spec.min_nodes = options.spec.max_nodes = agents;
    options.spec.node_ranks_bind = false;
    options.spec.max_restarts = 1;
    options.run_id = kRunId;
    options.token = kToken;
    return options;
  }
  CoordinatorHost::Hooks Hooks() {
    CoordinatorHost::Hooks hooks;
    hooks.on_finish = [](const JobOutcome&) {};
    hooks.on_news = [this](const job::News& news) {
      losses_ += std::holds_alternative<job::NodeLost>(news) ? 1 : 0;
      if (std::holds_alternative<job::WorldStopped>(news)) {
        loop_.Stop();
      }
    };
    hooks.on_step = [this] { OnStep(); };
    return hooks;
  }

  /// All have started once nobody owes an answer any more.
  void OnStep() {
    if (formed_ns_ != 0 || host_.machine().phase() != job::Phase::kRunning ||
        host_.machine().reason().find("running generation") != 0) {
      return;
    }
    formed_ns_ = NowNs();
    cpu_to_form_ = CpuSeconds() - cpu_before_;
    loop_.At(MonoNow() + kRunsFor, [this] {
      cpu_running_ = CpuSeconds() - cpu_before_ - cpu_to_form_;
      failed_ns_ = NowNs();
      Tell(children_.back(), 'f');
    });
  }

  const int agents_;
  EventLoop loop_;
  StoreThread port_;
  CoordinatorHost host_;
  std::vector<Child> children_;
  int64_t began_ns_ = 0;
  int64_t formed_ns_ = 0;
  int64_t failed_ns_ = 0;
  double cpu_before_ = 0;
  double cpu_to_form_ = 0;
  double cpu_running_ = 0;
  int losses_ = 0;
};

}  // namespace
}  // namespace fsdprun

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--agents") {
    return fsdprun::RunAgents(std::atoi(argv[2]), std::atoi(argv[3]), std::atoi(argv[4]));
  }
  if (argc != 3 || std::atoi(argv[1]) < 2 || std::atoi(argv[2]) < 1) {
    std::fprintf(stderr, "usage: many_agents AGENTS PROCESSES\n");
    return 2;
  }
  fsdprun::RaiseDescriptorLimit();
  fsdprun::Bench("/proc/self/exe", std::atoi(argv[1]), std::atoi(argv[2])).Run();
}
