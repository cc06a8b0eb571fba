#include "tests/sim/wire.h"

#include <string>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "agent/rpc/codec.h"

namespace fsdprun {

// All fields of everything that is sent, for comparing. A structured binding names each of them: a
// field that is added to a message does not compile here until it is compared, too.

static auto Fields(const NodeInfo& node) {
  const auto& [incarnation, name, address, local_world_size, role, requested_node_rank,
               has_successor] = node;
  return std::tie(incarnation, name, address, local_world_size, role, requested_node_rank,
                  has_successor);
}
static auto Fields(const StoreEndpoint& store) {
  const auto& [address, port] = store;
  return std::tie(address, port);
}
static auto Fields(const Progress& progress) {
  const auto& [step, total, text] = progress;
  return std::tie(step, total, text);
}
static auto Fields(const WorkerExit& exit) {
  const auto& [local_rank, rank, pid, exit_code, signal, dumped_core, after_stop, killed_by_us,
               failed_before_stop, error_message, traceback, error_json, error_timestamp_s,
               stderr_tail, last_step, log_path, exited_unix_ns] = exit;
  return std::tie(local_rank, rank, pid, exit_code, signal, dumped_core, after_stop, killed_by_us,
                  failed_before_stop, error_message, traceback, error_json, error_timestamp_s,
                  stderr_tail, last_step, log_path, exited_unix_ns);
}
static auto Fields(const RankAssignment& assignment) {
  const auto& [generation, group_rank, group_world_size, rank_offset, world_size, local_world_size,
               role, role_rank_offset, role_world_size, restart_count, max_restarts,
               earlier_restarts, world_of_attempt, master_addr, master_port, launch_id] =
      assignment;
  return std::tie(generation, group_rank, group_world_size, rank_offset, world_size,
                  local_world_size, role, role_rank_offset, role_world_size, restart_count,
                  max_restarts, earlier_restarts, world_of_attempt, master_addr, master_port,
                  launch_id);
}

static auto Fields(const BuildInfo& build) {
  const auto& [protocol, release] = build;
  return std::tie(protocol, release);
}
static auto Fields(const AgentJoined& joined) {
  const auto& [node, highest_seen, cannot_run, build] = joined;
  return std::tie(node, highest_seen, cannot_run, build);
}
static auto Fields(const AgentHeartbeat& beat) {
  const auto& [progress, asks] = beat;
  return std::tie(progress, asks);
}
static auto Fields(const AgentPrepared& prepared) {
  const auto& [store] = prepared;
  return std::tie(store);
}
static auto Fields(const AgentStarted& /*started*/) { return std::tuple(); }
static auto Fields(const WorkerExited& exited) {
  const auto& [exit, age] = exited;
  return std::tie(exit, age);
}
static auto Fields(const WorkersEnded& ended) {
  const auto& [exits] = ended;
  return std::tie(exits);
}
static auto Fields(const NodeFaulted& faulted) {
  const auto& [kind, what, age] = faulted;
  return std::tie(kind, what, age);
}
static auto Fields(const WorkersStopped& /*stopped*/) { return std::tuple(); }
static auto Fields(const AgentLeft& left) {
  const auto& [signal, workers_running] = left;
  return std::tie(signal, workers_running);
}

static auto Fields(const JobTerms& terms) {
  const auto& [min_nodes, max_nodes, max_restarts, join_timeout, last_call] = terms;
  return std::tie(min_nodes, max_nodes, max_restarts, join_timeout, last_call);
}
static auto Fields(const AdmitAgent& admit) {
  const auto& [node_lease, terms, build, may_be_taken_over] = admit;
  return std::tie(node_lease, terms, build, may_be_taken_over);
}
static auto Fields(const RejectAgent& reject) {
  const auto& [reason, rejoin] = reject;
  return std::tie(reason, rejoin);
}
static auto Fields(const PrepareGeneration& prepare) {
  const auto& [assignment] = prepare;
  return std::tie(assignment);
}
static auto Fields(const CommitGeneration& commit) {
  const auto& [store] = commit;
  return std::tie(store);
}
static auto Fields(const StopWorkers& stop) {
  const auto& [signal, grace, reason] = stop;
  return std::tie(signal, grace, reason);
}
static auto Fields(const ReleaseAgent& release) {
  const auto& [exit_code, reason, cut_off, job_goes_on] = release;
  return std::tie(exit_code, reason, cut_off, job_goes_on);
}

static auto Fields(const PassSignal& pass) {
  const auto& [signal] = pass;
  return std::tie(signal);
}

static auto Fields(const HeartbeatHeard& /*heard*/) { return std::tuple(); }

static auto Fields(const LeftOut& left_out) {
  const auto& [why] = left_out;
  return std::tie(why);
}

static auto Fields(const FromAgent& envelope) {
  const auto& [incarnation, generation, message] = envelope;
  return std::tie(incarnation, generation, message);
}
static auto Fields(const ToAgent& envelope) {
  const auto& [incarnation, generation, message] = envelope;
  return std::tie(incarnation, generation, message);
}

// In this namespace, where the comparisons of std::tuple, std::optional and std::variant find it.
template <class T>
requires requires(const T& value) { Fields(value); }
static bool operator==(const T& a, const T& b) { return Fields(a) == Fields(b); }

namespace sim {
namespace {

template <class Wire, class Message>
absl::StatusOr<Message> Carry(const Message& message) {
  Wire received;
  if (!received.ParseFromString(Encode(message, "job").SerializeAsString())) {
    return absl::InternalError("a message arrives as something that is none");
  }
  absl::StatusOr<Message> decoded = Decode(received);
  if (decoded.ok() && !(*decoded == message)) {
    return absl::InternalError(absl::StrCat("not all of a message arrives: ",
                                            received.ShortDebugString().substr(0, 1000)));
  }
  return decoded;
}

}  // namespace

absl::StatusOr<FromAgent> OverTheWire(const FromAgent& message) {
  return Carry<v1::AgentMessage>(message);
}

absl::StatusOr<ToAgent> OverTheWire(const ToAgent& message) {
  return Carry<v1::CoordinatorMessage>(message);
}

}  // namespace sim
}  // namespace fsdprun
