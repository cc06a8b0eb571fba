#include <algorithm>
#include <csignal>
#include <iterator>

#include "tests/sim/sim_world.h"

namespace fsdprun::sim {

namespace {

constexpr int kExitConfig = 78;

constexpr const char* kOwnErrors[] = {
    "CUDA out of memory", "CheckpointError: cannot store NaN in step.json",
    "RuntimeError: expected F32 but /data/datastore/restored.bin is stored as BF16",
    "DivergedError: the loss is not finite"};
constexpr const char* kVictimErrors[] = {
    "torch.distributed.DistBackendError: Connection closed by peer [10.0.0.7]:20913",
    "PeerError: all_gather: rank 3 is gone", "DistNetworkError: TCPStore recv failed",
    "ConnectionResetError: [Errno 104] Connection reset by peer"};

/// How a process ends that fails on its own: hard, with an error of its own, or without a word.
Ending EndingOfCulprit(FaultKind kind, Random& random) {
  if (kind == FaultKind::kConfigExit) {
    return {.exit_code = kExitConfig, .error = "no such model: llama-13"};
  }
  switch (random.Below(4)) {
    case 0:  // the kernel has much memory to take down
      return {.signal = SIGKILL, .notice_delay = random.Between(0, 300 * kMilli)};
    case 1:
      return {.signal = SIGSEGV, .notice_delay = random.Between(0, 300 * kMilli)};
    case 2:  // an interpreter closes its sockets before it exits
      return {.exit_code = 1,
              .notice_delay = random.Between(0, 100 * kMilli),
              .error = kOwnErrors[random.Below(std::size(kOwnErrors))]};
    default:
      return {.exit_code = 1, .notice_delay = random.Between(0, 100 * kMilli)};
  }
}

/// How a process ends that has lost a peer.
Ending EndingOfVictim(Random& random) {
  switch (random.Below(3)) {
    case 0:
      return {.exit_code = 1, .error = kVictimErrors[random.Below(std::size(kVictimErrors))]};
    case 1:
      return {.exit_code = 1};
    default:
      return {.signal = SIGABRT};
  }
}

}  // namespace

/// A worker that runs and has not been told to stop.
std::optional<size_t> World::LiveWorker(uint32_t index) const {
  const std::vector<Process>& processes = agents_[index]->processes;
  const auto live = std::find_if(processes.begin(), processes.end(), [this](const Process& p) {
    return p.alive && !p.dying && p.unkillable_until <= now_;
  });
  return live == processes.end()
             ? std::nullopt
             : std::optional<size_t>(static_cast<size_t>(live - processes.begin()));
}

void World::KillWorker(FaultKind kind, uint32_t index) {
  const std::optional<size_t> worker = LiveWorker(index);
  if (!worker) {
    return;
  }
  const Process process = agents_[index]->processes[*worker];
  const Ending ending = EndingOfCulprit(kind, random_);
  InjectedFault fault = FaultOn(kind, agents_[index]->slot, now_);
  fault.generation = fault.breaks = process.generation;
  fault.pid = process.pid;
  fault.exit_code = ending.exit_code;
  fault.signal = ending.signal;
  fault.tells_its_error = !ending.error.empty();
  const FaultLedger::FaultId id = referee_.ledger().Add(fault);
  EndProcess(index, *worker, ending);
  FailPeers(id, process.generation);
}

/// The agent is no more, and with kPowerOff and kScrapNode its host with it.
void World::KillAgent(FaultKind kind, uint32_t index) {
  const int slot = agents_[index]->slot;
  const bool host_lives = kind == FaultKind::kKillAgent;
  InjectedFault fault = FaultOn(kind, slot, now_);
  const std::optional<size_t> worker = LiveWorker(index);
  fault.breaks = worker ? agents_[index]->processes[*worker].generation : Generation{};
  const FaultLedger::FaultId id = referee_.ledger().Add(fault);
  slots_[slot].is_scrapped |= kind == FaultKind::kScrapNode;
  AgentDies(index, host_lives);
  // A host without power resets no connection: its peers hang, and fail of nothing.
  if (worker && host_lives) {
    FailPeers(id, fault.breaks);
  }
  RestartLater(slot, 100 * kMilli, 8 * kSecond);
}

void World::KillKeeper(uint32_t index) {
  Agent& agent = *agents_[index];
  if (!agent.keeper_alive) {
    return;
  }
  InjectedFault fault = FaultOn(FaultKind::kKillKeeper, agent.slot, now_);
  const std::optional<size_t> worker = LiveWorker(index);
  fault.generation = agent.machine.generation();
  fault.breaks = worker ? agent.processes[*worker].generation : Generation{};
  const FaultLedger::FaultId id = referee_.ledger().Add(fault);
  agent.keeper_alive = false;
  StepAgent(index, node::KeeperLost{"killed by signal 9"});
  if (worker) {
    FailPeers(id, fault.breaks);
  }
}

/// SIGSTOP: SIGTERM waits, SIGKILL does not. A coordinator that is stopped watches nothing.
void World::HangWorker(uint32_t index) {
  const std::optional<size_t> worker = LiveWorker(index);
  if (!worker || coordinator_paused_until_ > now_ || coordinator_died_ || coordinator_is_down_) {
    return;
  }
  Process& process = agents_[index]->processes[*worker];
  if (process.generation != job_->generation() || job_->phase() != job::Phase::kRunning) {
    return;
  }
  process.ignores_term = true;
  InjectedFault fault = FaultOn(FaultKind::kHangWorker, agents_[index]->slot, now_);
  fault.generation = fault.breaks = process.generation;
  referee_.ledger().Add(fault);
  StepJob(job::WorldHangs{process.generation, process.rank, std::chrono::seconds(8),
                          "rank " + std::to_string(process.rank) + " does not move"});
}

/// A device or a file system hangs.
void World::MakeUnkillable(uint32_t index) {
  const std::optional<size_t> worker = LiveWorker(index);
  if (!worker) {
    return;
  }
  Process& process = agents_[index]->processes[*worker];
  process.unkillable_until = now_ + random_.Between(kSecond, 20 * kSecond);
  InjectedFault fault =
      FaultOn(FaultKind::kUnkillableWorker, agents_[index]->slot, process.unkillable_until);
  fault.generation = process.generation;
  referee_.ledger().Add(fault);
  referee_.BecameUnkillable(process.pid);
  At(process.unkillable_until, [this, index, i = *worker] { Wake(index, i); });
}

/// Some peers fail soon after, of the lost connection, and their notice may be the faster one.
void World::FailPeers(FaultLedger::FaultId culprit, Generation g) {
  for (int victims = static_cast<int>(random_.Below(3)); victims > 0; --victims) {
    const std::optional<uint32_t> peer = PickAgent();
    if (!peer) {
      continue;
    }
    At(now_ + random_.Between(kMilli, 80 * kMilli), [this, culprit, g, p = *peer] {
      const std::optional<size_t> worker = LiveWorker(p);
      if (worker && agents_[p]->processes[*worker].generation == g) {
        referee_.ledger().AddVictim(agents_[p]->processes[*worker].pid, culprit);
        EndProcess(p, *worker, EndingOfVictim(random_));
      }
    });
  }
}

}  // namespace fsdprun::sim
