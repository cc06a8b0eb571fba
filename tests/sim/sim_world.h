#pragma once

// A whole job in one thread and virtual time: the real JobMachine, real NodeMachines, the real
// codecs, a faulty network, fake processes, and a nemesis. Every run is a pure function of (seed,
// nodes, mix).

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "agent/node/node_machine.h"
#include "launcher/coordinator/job_machine.h"
#include "tests/sim/fault_mix.h"
#include "tests/sim/message_pool.h"
#include "tests/sim/virtual_time.h"

namespace fsdprun::sim {

struct SimOptions {
  uint64_t seed = 1;
  int nodes = 8;
  int local_world_size = 2;
  FaultMix mix;
  /// Print one line per decision.
  bool log = false;
  /// Check the JobMachine's invariants after every so many changes (1: after each).
  int check_every = 1;
  /// Every so-many-th message passes through the codecs (1: all, 0: none). They change nothing, but
  /// cost more than all the rest of a beat.
  int wire_every = 1;
};

struct SimResult {
  /// Empty, or what was violated and when.
  std::string violation;
  Nanos ended_at = 0;
  uint64_t items = 0;
  uint64_t beats = 0;
  int formations = 0;
  int restarts = 0;
  int membership_changes = 0;
  int faults = 0;
  uint64_t stale_dropped = 0;
  std::optional<JobOutcome> outcome;
};

class World {
 public:
  explicit World(SimOptions options);
  /// Runs until the job has finished and everything has ended, or until `hours` of virtual time
  /// have passed (0: no limit).
  SimResult Run(double hours);

 private:
  struct Process {
    Generation generation;
    int local_rank = 0;
    bool alive = true;
    bool ignores_term = false;
    bool dying = false;
  };
  /// One agent life, with what it has on its node. What a beat reads comes first.
  struct alignas(64) Agent {
    explicit Agent(NodeSpec spec) : machine(std::move(spec)) {}
    bool alive = true;
    bool keeper_alive = false;
    bool fail_next_prepare = false;
    int slot = 0;
    uint32_t stream = 0;  // index + 1, 0: none
    Nanos timer_at = 0;   // of the pending timer item, 0: none
    Nanos paused_until = 0;
    NodeMachine machine;
    Incarnation incarnation;
    Generation acknowledged;
    std::vector<Process> processes;
  };
  /// One direction of a stream: messages in flight arrive in order.
  template <class Event>
  struct Direction {
    typename MessagePool<Event>::Fifo queue;
    Nanos last_delivery = 0;
    bool stalled = false;
    bool close_pending = false;
  };
  struct alignas(64) Stream {
    uint32_t agent = 0;
    bool agent_open = true;   // the agent still listens to it
    bool server_open = true;  // the coordinator still listens to it
    Direction<job::Event> up;
    Direction<node::Event> down;
  };
  /// A place in the cluster; agents come and go on it.
  struct Slot {
    Nanos up_cut_until = 0;
    Nanos down_cut_until = 0;
    Nanos clogged_until = 0;
    std::optional<uint32_t> agent;
    bool is_extra = false;
    /// The rank that agents here ask for.
    std::optional<int> node_rank;
    std::string name;
  };

  // sim_world.cc
  void Fire(const Item& item);
  void Prefetch(const Item& item, int buckets_ahead) const;
  void At(Nanos when, std::function<void()> call);
  void Violate(const std::string& what);
  void Log(const std::string& line);
  static MonoTime Mono(Nanos t) { return MonoTime(Duration(t)); }
  static Nanos Virtual(MonoTime t);
  void StepJob(const job::Event& event);
  void CheckOutcome(const JobOutcome& outcome);
  void ScheduleJobTimer(MonoTime wake);
  void CheckJob();
  void CheckRelease(const ToAgent& message);
  void CheckSettled();
  bool JobIsSettled() const;

  // sim_agent.cc: the executor of NodeMachine and its processes.
  uint32_t StartAgent(int slot);
  void StepAgent(uint32_t index, const node::Event& event);
  void Execute(uint32_t index, node::Send& send);
  void Execute(uint32_t index, const node::StartKeeper& start);
  void Execute(uint32_t index, const node::ReconnectStream& reconnect);
  void Execute(uint32_t index, const node::PrepareNode& prepare);
  void Execute(uint32_t index, const node::SpawnWorkers& spawn);
  void Execute(uint32_t index, const node::SignalWorkers& signal);
  void Execute(uint32_t index, const node::KillWorkers& kill);
  void Execute(uint32_t index, const node::KillOrphans& kill);
  void Execute(uint32_t index, const node::Exit& exit);
  void KillGenerationOf(uint32_t index, Generation g);
  void EndProcess(uint32_t index, size_t process, int exit_code, int signal, Nanos notice_delay);
  void AgentDies(uint32_t index, bool host_lives);
  void FinishWork(uint32_t index, Generation g);
  bool AnyAlive(uint32_t index) const;
  bool AnyAliveOf(uint32_t index, Generation g) const;
  void RestartLater(int slot, Nanos low, Nanos high);

  // sim_network.cc
  void Connect(uint32_t index);
  template <class Message>
  void PassWire(Message& message);
  void SendUp(uint32_t stream, FromAgent& message);
  void SendDown(ToAgent& message);
  void DeliverUp(uint32_t stream);
  void DeliverDown(uint32_t stream);
  void ReplaceStream(Incarnation incarnation, uint32_t stream);
  void EndUp(uint32_t stream);
  void CloseByAgent(uint32_t index);
  void BreakStream(uint32_t index);
  void Unstall(uint32_t stream);
  void UnstallAll();
  void CutSlot(int slot, bool up, bool down, Nanos duration);
  Nanos Delay(const Slot& slot);
  void MaybeReset(uint32_t stream);
  void MaybeDuplicate(uint32_t stream, const FromAgent& message);

  // sim_nemesis.cc
  void ScheduleFault();
  void InjectFault();
  void Inflict(FaultKind kind, uint32_t index);
  FaultKind PickFault();
  std::optional<uint32_t> PickAgent();
  void KillWorker(uint32_t index);
  void KillKeeper(uint32_t index);
  void PauseUntil(Nanos& paused_until, Nanos then);
  void StopJob();
  void SignalCoordinator();
  void LeaveInNumbers();
  void DuplicateAgent(int slot);
  void PartitionSome(bool up, bool down);

  const SimOptions options_;
  Random random_;
  TimeQueue queue_;
  Nanos now_ = 0;
  std::vector<std::function<void()>> calls_;
  std::vector<uint32_t> free_calls_;

  std::unique_ptr<JobMachine> job_;
  Nanos job_timer_at_ = 0;
  Nanos coordinator_paused_until_ = 0;
  uint64_t checked_revision_ = 0;
  std::string last_reason_;
  bool job_finished_ = false;
  /// An operator's signal has reached the job before its end was decided.
  bool stop_heard_ = false;
  uint64_t messages_sent_ = 0;

  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Stream> streams_;
  MessagePool<job::Event> up_messages_;
  MessagePool<node::Event> down_messages_;
  /// Used again by every step; carrying out effects never steps the same machine.
  job::Effects job_effects_;
  node::Effects node_effects_;
  std::unordered_map<uint64_t, uint32_t> current_stream_;  // by incarnation; only looked up

  /// generation -> global rank -> incarnation that started it: at most one world per generation,
  /// each rank at most once.
  std::map<Generation, std::map<int, Incarnation>> started_ranks_;
  std::map<Generation, RankAssignment> worlds_;
  bool healed_ = false;
  SimResult result_;
};

}  // namespace fsdprun::sim
