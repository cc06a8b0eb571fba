// machine_steps [NODES...]
//
// What a step of the coordinator's state machine costs with so many nodes, by kind of event:
// median, 99th percentile and longest, in microseconds of one core. Each kind is measured once per
// node, in the order in which a job has them: all join, prepare, start, beat; one worker fails, and
// the others die of the stop.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "launcher/coordinator/job_machine.h"

namespace fsdprun {
namespace {

using Micros = std::vector<double>;

double At(Micros& sorted, double fraction) {
  return sorted[std::min(sorted.size() - 1, static_cast<size_t>(fraction * sorted.size()))];
}

/// Resident memory of this process, in MiB.
double ResidentMiB() {
  std::ifstream file("/proc/self/statm");
  long all = 0;
  long resident = 0;
  file >> all >> resident;
  return static_cast<double>(resident) * 4096 / (1 << 20);
}

class Job {
 public:
  explicit Job(int nodes) : nodes_(nodes), machine_(Spec(nodes)) {}

  void Run() {
    for (int i = 1; i <= nodes_; ++i) {
      Measure("a node joins", From(i, 0, AgentJoined{Info(i)}));
    }
    const double resident = ResidentMiB();
    for (int i = 1; i <= nodes_; ++i) {
      AgentPrepared prepared;
      prepared.store = StoreEndpoint{"10.0.0.1", 29500};
      Measure("a node is prepared", From(i, 1, prepared));
    }
    ForEach("a node has started its workers", AgentStarted{});
    ForEach("a heartbeat", AgentHeartbeat{});
    ForEach("a heartbeat that asks", AgentHeartbeat{{}, /*asks=*/true});
    Measure("the timer", job::TimerDue{}, std::chrono::seconds(1));
    Measure("a worker fails: all are stopped", From(1, 1, Exit(9, /*after_stop=*/false)));
    ForEach("a worker dies of the stop", Exit(15, /*after_stop=*/true));
    ForEach("a node has stopped", WorkersStopped{});
    Print(resident);
  }

 private:
  static JobSpec Spec(int nodes) {
    JobSpec spec;
    spec.min_nodes = spec.max_nodes = nodes;
    spec.node_ranks_bind = false;
    spec.max_restarts = 3;
    spec.restart_backoff = spec.max_restart_backoff = std::chrono::seconds(1);
    return spec;
  }
  static NodeInfo Info(int i) {
    NodeInfo info;
    info.incarnation = Of(i);
    info.name = "node-" + std::to_string(i);
    info.address = "10.0.0.1";
    info.local_world_size = 8;
    return info;
  }
  /// Incarnations are random: nodes do not come in their order.
  static Incarnation Of(int i) {
    return Incarnation(static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15 | 1);
  }
  static FromAgent From(int i, uint64_t generation, AgentMessage message) {
    return FromAgent{Of(i), Generation(generation), std::move(message)};
  }
  static WorkerExited Exit(int signal, bool after_stop) {
    WorkerExited exited;
    exited.exit.local_rank = after_stop ? 1 : 0;
    exited.exit.signal = signal;
    exited.exit.after_stop = exited.exit.killed_by_us = after_stop;
    exited.exit.stderr_tail = {"the last line"};
    return exited;
  }

  void ForEach(const char* what, const AgentMessage& message) {
    for (int i = 1; i <= nodes_; ++i) {
      Measure(what, From(i, 1, message));
    }
  }

  void Measure(const char* what, const job::Event& event, Duration later = {}) {
    now_ += later;
    const auto begin = std::chrono::steady_clock::now();
    machine_.Step(event, now_, effects_);
    const auto end = std::chrono::steady_clock::now();
    if (times_.empty() || times_.back().first != what) {
      times_.emplace_back(what, Micros());
    }
    times_.back().second.push_back(std::chrono::duration<double, std::micro>(end - begin).count());
  }

  void Print(double resident_mib) {
    for (auto& [what, times] : times_) {
      std::sort(times.begin(), times.end());
      std::printf("| %d | %s | %.1f | %.1f | %.1f |\n", nodes_, what.c_str(), At(times, 0.5),
                  At(times, 0.99), times.back());
    }
    std::printf("| %d | resident memory of the process once all have joined, MiB | %.0f | | |\n",
                nodes_, resident_mib);
  }

  const int nodes_;
  JobMachine machine_;
  job::Effects effects_;
  MonoTime now_{std::chrono::hours(1)};
  std::vector<std::pair<std::string, Micros>> times_;
};

}  // namespace
}  // namespace fsdprun

int main(int argc, char** argv) {
  std::vector<int> counts;
  for (int i = 1; i < argc; ++i) {
    counts.push_back(std::atoi(argv[i]));
  }
  if (counts.empty()) {
    counts = {100, 1000, 10000};
  }
  std::printf("| nodes | step | median, us | 99 %% | longest |\n|---|---|---|---|---|\n");
  for (const int count : counts) {
    if (count < 2) {
      std::fprintf(stderr, "machine_steps: expected numbers of nodes, at least 2\n");
      return 2;
    }
    fsdprun::Job(count).Run();
  }
  return 0;
}
