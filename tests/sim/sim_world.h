#pragma once

// A whole job in one thread and virtual time: the real JobMachine, real NodeMachines, the real
// codecs, a faulty network, fake processes, and a nemesis. Every run is a pure function of (seed,
// nodes, mix). Whether what happens is right is for the oracles to say (tests/sim/oracles); here
// they are only told.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "launcher/coordinator/job_machine.h"
#include "tests/sim/fault_mix.h"
#include "tests/sim/message_pool.h"
#include "tests/sim/oracles/referee.h"
#include "tests/sim/sim_state.h"
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
  /// cost more than all the rest of a heartbeat.
  int wire_every = 1;
};

struct SimResult {
  /// Empty, or what was violated and when.
  std::string violation;
  Nanos ended_at = 0;
  uint64_t items = 0;
  uint64_t heartbeats = 0;
  int formations = 0;
  /// When the first world was committed; 0: none was.
  Nanos committed_at = 0;
  int restarts = 0;
  int membership_changes = 0;
  int faults = 0;
  uint64_t stale_dropped = 0;
  /// See Referee.
  std::map<std::string, int> questions;
  std::optional<JobOutcome> outcome;
};

class World {
 public:
  explicit World(SimOptions options);
  /// Runs until the job has finished and everything has ended, or until `hours` of virtual time
  /// have passed. With 0 it must end by itself within the time that its mix can take.
  SimResult Run(double hours);

 private:
  // sim_world.cc
  void Fire(const Item& item);
  void Prefetch(const Item& item, int buckets_ahead) const;
  void At(Nanos when, std::function<void()> call);
  void Violate(const std::string& what);
  void Log(const std::string& line);
  static MonoTime Mono(Nanos t) { return MonoTime(Duration(t)); }
  static Nanos Virtual(MonoTime t);
  void CheckEnd();
  void Heal();
  Nanos Horizon() const;
  Nanos InMix(double seconds) const { return static_cast<Nanos>(seconds * kSecond); }

  // sim_coordinator.cc: the executor of JobMachine.
  class JobExecutor;
  void StartJob(std::unique_ptr<JobMachine> job);
  void Keep(const job::Record& record);
  void StepJob(const job::Event& event);
  void SendOrder(ToAgent& order);
  void OnJobStepped(const job::Effects& effects);
  /// For an event that is a FromAgent.
  void StepJobWithReport(const job::Event& event);
  void CheckRelease(const ToAgent& message);
  void CheckRecorded(const ToAgent& message);
  JobSpec Spec() const;
  void Hear(const job::JobFinished& finished);
  void Hear(const job::WorldStopping& stopping);
  void Hear(const job::NodeJoined&) { referee_.load().NodeJoined(); }
  void Hear(const job::NodeLost& lost);
  void Hear(const job::WorldCommitted&);
  template <class Other>
  void Hear(const Other&) {}
  void LookAtPlace();
  void AnswerPlace(Nanos looked_at);
  void TellOfTakenPlace();
  void ScheduleJobTimer(MonoTime wake);
  void CheckJob();
  void CheckSettled();
  Nanos WaitsForNodesUntil() const;

  // sim_agent.cc: the executor of NodeMachine.
  class AgentExecutor;
  uint32_t StartAgent(int slot);
  void StepAgent(uint32_t index, const node::Event& event);
  void WakeAgentAt(uint32_t index, MonoTime wake);
  void CheckOrder(const ToAgent& order, Generation held, const node::Effects& effects);
  void SendReport(uint32_t index, FromAgent& report);
  void Execute(uint32_t index, const node::StartKeeper& start);
  void Execute(uint32_t index, const node::ReconnectStream& reconnect);
  void Execute(uint32_t index, const node::PrepareNode& prepare);
  void Execute(uint32_t index, const node::SpawnWorkers& spawn);
  void Execute(uint32_t index, const node::AdoptWorkers& adopt);
  void Execute(uint32_t index, const node::SignalWorkers& signal);
  void Execute(uint32_t /*index*/, const node::NotifyWorkers& /*notify*/) {}
  void Execute(uint32_t index, const node::KillWorkers& kill);
  void Execute(uint32_t index, const node::KillOrphans& kill);
  void Execute(uint32_t index, const node::Exit& exit);
  void Prepare(uint32_t index, Generation g, bool has_store);
  void AgentDies(uint32_t index, bool host_lives);
  void RestartLater(int slot, Nanos low, Nanos high);

  // sim_process.cc: the workers.
  void CheckWorld(const Agent& agent, const RankAssignment& assignment);
  int64_t StartWorker(uint32_t index, const RankAssignment& assignment, int local_rank);
  void KillGenerationOf(uint32_t index, Generation g);
  void EndProcess(uint32_t index, size_t process, const Ending& ending);
  void Reap(uint32_t index, size_t process, const WorkerExit& exit);
  // Agents that are killed, and others that go on in their place: sim_adoption.cc.
  void ReplaceAgent(uint32_t index, Nanos until);
  void ResumeAgent(uint32_t index);
  void RepeatToNext(uint32_t index);
  void TellAgent(uint32_t index, Generation g, const node::Event& event);
  /// Does nothing if another agent is there by then.
  void AtInLife(Nanos at, uint32_t index, std::function<void()> action);
  void EndOrphans(uint32_t index);
  void Wake(uint32_t index, size_t process);
  void FinishWork(uint32_t index, Generation g);
  bool AnyAlive(uint32_t index) const;
  bool AnyLeftOf(uint32_t index, Generation g) const;

  // sim_network.cc
  void Connect(uint32_t index, Nanos until);
  void OpenStream(uint32_t index);
  bool IsUnheard(const Slot& slot) const;
  template <class Message>
  void PassWire(Message& message);
  void SendUp(uint32_t stream, FromAgent& message);
  void SendDown(ToAgent& message);
  void DeliverUp(uint32_t stream);
  void DeliverDown(uint32_t stream);
  void ReplaceStream(Incarnation incarnation, uint32_t stream);
  void EndUp(uint32_t stream);
  void EndOfMachine(uint32_t stream);
  void CloseByAgent(uint32_t index);
  void BreakStream(uint32_t index);
  void LoseStream(uint32_t index, const char* why);
  void Unstall(uint32_t stream);
  void UnstallAll();
  void CutSlot(int slot, bool up, bool down, Nanos until);
  Nanos Delay(const Slot& slot);
  void MaybeReset(uint32_t stream);
  void MaybeDuplicate(uint32_t stream, const FromAgent& message);

  // sim_load.cc
  bool IsLoaded() const;
  void StarveAgent(uint32_t index);
  void StarveCoordinator();

  // sim_nemesis.cc: when, what and where.
  void ScheduleFault();
  void InjectFault();
  FaultKind PickFault();
  std::optional<uint32_t> PickAgent();
  std::optional<uint32_t> PickVictim();
  void Inflict(FaultKind kind, uint32_t index);
  void Disturb(FaultKind kind, uint32_t index);
  InjectedFault FaultOn(FaultKind kind, int slot, Nanos until) const;
  void PauseAgent(uint32_t index, Nanos until);
  void PauseCoordinator(Nanos until);
  void TakePlace();
  void KillCoordinator();
  void Clog(int slot);
  void StopJob();
  void SignalCoordinator(int signal);
  void NoteLeaving(uint32_t index);
  void LeaveInNumbers();
  void DuplicateAgent(int slot);
  void PartitionSome(FaultKind kind, bool up, bool down);

  // sim_successor.cc: a coordinator that is killed, and the next one.
  void RestartCoordinator();
  void KeepRecord(const job::Record& record);
  void EndCoordinator();
  void StartSuccessor();

  // sim_scheduler.cc: what gave the job its nodes.
  void SignalNodes();
  void SignalAll();
  void SignalSome();
  std::vector<int> ShuffledSlots();
  void SignalSlot(int slot, int signal, bool loses_word);
  void TroubleDuring(int slot, Nanos from, Nanos to);
  void CutFor(int slot, Nanos time);
  void SignalAgent(uint32_t index, int signal, bool loses_word);
  void MaybeAnswerDoubt();

  // sim_operator.cc: fsdpctl.
  void AskCoordinator(const std::function<void()>& question);
  void AskForRestart();
  void DrainNode(uint32_t index);
  void ScaleJob();
  void CheckSizeIsHeeded(int max_nodes);
  void CheckDrainedAreGone();

  // sim_worker_faults.cc: faults of workers and of what holds them.
  void KillWorker(FaultKind kind, uint32_t index);
  void KillAgent(FaultKind kind, uint32_t index);
  void KillKeeper(uint32_t index);
  void MakeUnkillable(uint32_t index);
  void HangWorker(uint32_t index);
  void FailPeers(FaultLedger::FaultId culprit, Generation g);
  std::optional<size_t> LiveWorker(uint32_t index) const;

  const SimOptions options_;
  Random random_;
  /// How long looks at the place take: by itself, so that it does not matter for anything else when
  /// within a step they are asked for.
  Random looks_;
  TimeQueue queue_;
  Nanos now_ = 0;
  std::vector<std::function<void()>> calls_;
  std::vector<uint32_t> free_calls_;

  std::unique_ptr<JobMachine> job_;
  Nanos job_timer_at_ = 0;
  Nanos coordinator_paused_until_ = 0;
  uint64_t checked_revision_ = 0;
  std::string last_reason_;
  /// Until when nobody can take the place; see PlaceOracle.
  Nanos place_held_until_ = 0;
  Nanos place_out_of_reach_until_ = 0;
  bool place_will_be_taken_ = false;
  bool place_is_taken_ = false;
  bool job_finished_ = false;
  bool coordinator_died_ = false;
  /// Killed, and not started again yet.
  bool coordinator_is_down_ = false;
  /// It is killed when it has kept its next record, before all that depends on it is sent.
  bool dies_with_next_record_ = false;
  /// It is killed within this step; the messages from some point on are not sent.
  bool is_dying_ = false;
  bool sends_no_more_ = false;
  std::optional<job::Record> kept_;
  int coordinator_restarts_ = 0;
  int worlds_taken_over_ = 0;
  /// An operator's signal has reached the job before its end was decided.
  bool stop_heard_ = false;
  bool has_decided_ = false;
  /// What the job was given: the slots before this one.
  int allocated_ = 0;
  /// The scheduler ends the job, and says so if it is asked.
  bool scheduler_ends_it_ = false;
  uint64_t doubtful_signals_ = 0;
  uint64_t messages_sent_ = 0;

  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Agent>> agents_;
  std::vector<Stream> streams_;
  MessagePool<job::Event> up_messages_;
  MessagePool<node::Event> down_messages_;
  std::unique_ptr<MachineDriver<JobMachine>::Executor> job_executor_;
  std::unique_ptr<MachineDriver<JobMachine>> job_driver_;
  /// The latest step has had messages or news.
  bool job_had_effect_ = false;
  std::unordered_map<uint64_t, uint32_t> current_stream_;  // by incarnation; only looked up
  std::unordered_map<uint64_t, int> slot_of_;              // the same

  /// generation -> global rank -> incarnation that started it: at most one world per generation,
  /// each rank at most once.
  std::map<Generation, std::map<int, Incarnation>> started_ranks_;
  std::map<Generation, RankAssignment> worlds_;
  int64_t next_pid_ = 1001;
  bool healed_ = false;
  Referee referee_;
  SimResult result_;
};

}  // namespace fsdprun::sim
