#pragma once

// What a simulated cluster consists of. Values only; World moves them.

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/node_machine.h"
#include "base/machine_driver.h"
#include "launcher/coordinator/job_machine.h"
#include "tests/sim/message_pool.h"
#include "tests/sim/virtual_time.h"

namespace fsdprun::sim {

/// Within which an agent of a job that runs notices that the coordinator is out of reach.
inline constexpr Nanos kSilence = 3 * kSecond;
/// Within which the coordinator's kernel notices that the machine at the other end is gone.
inline constexpr Nanos kMachineGone = 4 * kSecond;

/// How long a look at the place of the host may take.
inline constexpr Nanos kLongestLook = 4 * kSecond;

struct Process {
  /// Unique in the cluster.
  int64_t pid = 0;
  Generation generation;
  int local_rank = 0;
  int rank = 0;
  bool alive = true;
  /// Its parent has collected it: only then is nothing left of it.
  bool reaped = false;
  bool ignores_term = false;
  bool dying = false;
  /// In uninterruptible sleep until then; a SIGKILL sent meanwhile waits for its end.
  Nanos unkillable_until = 0;
  bool kill_pending = false;
};

/// How a process ends, and how much of it its node learns, and when.
struct Ending {
  int exit_code = 0;
  int signal = 0;
  Nanos notice_delay = 0;
  /// What the process wrote into its error file.
  std::string error;
};

/// Faults that wait for the next occasion on their node.
struct ArmedFaults {
  bool fail_prepare = false;
  bool hang_prepare = false;
  bool fail_spawn = false;
};

/// What a keeper has told of a generation, and when.
struct KeeperWord {
  Nanos at = 0;
  node::Event event;
};

/// One agent life, with what it has on its node. What a heartbeat reads comes first.
struct alignas(64) Agent {
  using Executor = MachineDriver<NodeMachine>::Executor;
  Agent(const NodeSpec& its_spec, std::unique_ptr<Executor> its_executor)
      : machine(its_spec),
        spec(its_spec),
        executor(std::move(its_executor)),
        driver(machine, *executor) {}
  bool alive = true;
  bool keeper_alive = false;
  bool was_admitted = false;
  /// An operator has signalled it.
  bool is_leaving = false;
  ArmedFaults armed;
  int slot = 0;
  uint32_t stream = 0;  // index + 1, 0: none
  Nanos timer_at = 0;   // of the pending timer item, 0: none
  Nanos paused_until = 0;
  NodeMachine machine;
  const NodeSpec spec;
  std::unique_ptr<Executor> executor;
  MachineDriver<NodeMachine> driver;
  Incarnation incarnation;
  /// The generation that it last began to prepare, and last reported as prepared.
  Generation prepared;
  Generation acknowledged;
  std::vector<Process> processes;
  /// How many agents before this one have been here, as the same incarnation.
  uint32_t lives_before = 0;
  /// What the last one has left with the keeper.
  std::optional<NodeRecord> record;
  /// Of which generation the keeper was ordered to start workers, and what it has told of them.
  Generation ordered;
  std::vector<KeeperWord> told;
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
  Nanos no_keeper_until = 0;
  std::optional<uint32_t> agent;
  bool is_extra = false;
  bool is_scrapped = false;
  /// The rank that agents here ask for.
  std::optional<int> node_rank;
  /// The same, as a preference.
  std::optional<int> preferred_rank;
  /// Agents here cannot run the program.
  bool lacks_program = false;
  std::string name;
};

}  // namespace fsdprun::sim
