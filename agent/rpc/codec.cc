#include "agent/rpc/codec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxNameBytes = 1024;
constexpr size_t kMaxErrorTextBytes = 64u << 10;
constexpr size_t kMaxErrorJsonBytes = 256u << 10;
constexpr size_t kMaxTailLines = 64;
constexpr size_t kMaxTailLineBytes = 4096;
constexpr int kMaxWorkersPerNode = 4096;
constexpr int kMaxWorldSize = 1 << 24;
constexpr int kMaxSignal = 64;
/// About two years, in nanoseconds: added to any clock it does not overflow.
constexpr int64_t kMaxNanoseconds = int64_t{1} << 56;
constexpr int64_t kMaxInt = std::numeric_limits<int>::max();
/// Far above what a job can reach, far below overflow.
constexpr uint64_t kMaxGeneration = uint64_t{1} << 48;

std::string Cut(const std::string& text, size_t max_bytes) { return text.substr(0, max_bytes); }

absl::Status CheckRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
}

absl::Status CheckGeneration(const char* field, uint64_t value) {
  if (value <= kMaxGeneration) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected at most ", kMaxGeneration));
}

absl::Status CheckLength(const char* field, size_t bytes, size_t max_bytes) {
  if (bytes <= max_bytes) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " has ", bytes, " bytes, expected at most ", max_bytes));
}

/// For texts that become environment variables of the workers.
absl::Status CheckName(const char* field, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError(absl::StrCat(field, " has a zero byte"));
  }
  return CheckLength(field, text.size(), kMaxNameBytes);
}

/// A name or a numeric address, for an environment variable of the workers.
absl::Status CheckHost(const char* field, const std::string& host) {
  RETURN_IF_ERROR(CheckLength(field, host.size(), kMaxNameBytes));
  const bool is_word = !host.empty() && std::none_of(host.begin(), host.end(), [](char c) {
    return absl::ascii_isspace(static_cast<unsigned char>(c)) ||
           absl::ascii_iscntrl(static_cast<unsigned char>(c));
  });
  return is_word ? absl::OkStatus()
                 : absl::InvalidArgumentError(
                       absl::StrCat(field, " is '", absl::Utf8SafeCHexEscape(host),
                                    "', expected a host name or a numeric address"));
}

// --- Parts

void EncodeBuild(const BuildInfo& build, v1::BuildInfo* out) {
  out->set_protocol(build.protocol);
  out->set_release(Cut(build.release, kMaxNameBytes));
}

absl::StatusOr<BuildInfo> DecodeBuild(const v1::BuildInfo& build) {
  RETURN_IF_ERROR(CheckLength("build.release", build.release().size(), kMaxNameBytes));
  return BuildInfo{build.protocol(), build.release()};
}

void EncodeNode(const NodeInfo& node, v1::NodeInfo* out) {
  out->set_incarnation(node.incarnation.value());
  out->set_name(Cut(node.name, kMaxNameBytes));
  out->set_address(Cut(node.address, kMaxNameBytes));
  out->set_local_world_size(node.local_world_size);
  out->set_role(Cut(node.role, kMaxNameBytes));
  if (node.requested_node_rank.has_value()) {
    out->set_requested_node_rank(*node.requested_node_rank);
  }
  out->set_has_successor(node.has_successor);
}

absl::StatusOr<NodeInfo> DecodeNode(const v1::NodeInfo& node) {
  RETURN_IF_ERROR(CheckLength("node.name", node.name().size(), kMaxNameBytes));
  RETURN_IF_ERROR(CheckName("node.address", node.address()));
  RETURN_IF_ERROR(CheckName("node.role", node.role()));
  RETURN_IF_ERROR(
      CheckRange("node.local_world_size", node.local_world_size(), 1, kMaxWorkersPerNode));
  NodeInfo result{.incarnation = Incarnation(node.incarnation()),
                  .name = node.name(),
                  .address = node.address(),
                  .local_world_size = node.local_world_size(),
                  .role = node.role(),
                  .has_successor = node.has_successor()};
  if (node.has_requested_node_rank()) {
    RETURN_IF_ERROR(
        CheckRange("node.requested_node_rank", node.requested_node_rank(), 0, kMaxWorldSize));
    result.requested_node_rank = node.requested_node_rank();
  }
  return result;
}

void EncodeStore(const StoreEndpoint& store, v1::StoreEndpoint* out) {
  out->set_address(store.address);
  out->set_port(store.port);
}

absl::StatusOr<StoreEndpoint> DecodeStore(const v1::StoreEndpoint& store) {
  RETURN_IF_ERROR(CheckRange("store.port", store.port(), 1, 65535));
  RETURN_IF_ERROR(CheckHost("store.address", store.address()));
  return StoreEndpoint{store.address(), store.port()};
}

void EncodeExit(const WorkerExit& exit, v1::WorkerExit* out) {
  out->set_local_rank(exit.local_rank);
  out->set_rank(exit.rank);
  out->set_pid(exit.pid);
  out->set_exit_code(exit.exit_code);
  out->set_signal(exit.signal);
  out->set_dumped_core(exit.dumped_core);
  out->set_after_stop(exit.after_stop);
  out->set_killed_by_us(exit.killed_by_us);
  out->set_failed_before_stop(exit.failed_before_stop);
  out->set_error_message(Cut(exit.error_message, kMaxErrorTextBytes));
  out->set_traceback(Cut(exit.traceback, kMaxErrorTextBytes));
  // Truncated JSON is useless.
  out->set_error_json(exit.error_json.size() <= kMaxErrorJsonBytes ? exit.error_json : "");
  const size_t lines = exit.stderr_tail.size();
  for (size_t i = lines - std::min(lines, kMaxTailLines); i < lines; ++i) {
    out->add_stderr_tail(Cut(exit.stderr_tail[i], kMaxTailLineBytes));
  }
  out->set_last_step(exit.last_step);
  out->set_log_path(Cut(exit.log_path, kMaxTailLineBytes));
  out->set_exited_unix_ns(exit.exited_unix_ns);
  if (exit.error_timestamp_s.has_value()) {
    out->set_error_timestamp_s(*exit.error_timestamp_s);
  }
}

absl::StatusOr<WorkerExit> DecodeExit(const v1::WorkerExit& exit) {
  RETURN_IF_ERROR(CheckRange("exit.local_rank", exit.local_rank(), 0, kMaxWorkersPerNode - 1));
  RETURN_IF_ERROR(CheckRange("exit.rank", exit.rank(), 0, kMaxWorldSize));
  RETURN_IF_ERROR(CheckRange("exit.exit_code", exit.exit_code(), 0, 255));
  RETURN_IF_ERROR(CheckRange("exit.signal", exit.signal(), 0, kMaxSignal));
  RETURN_IF_ERROR(CheckRange("exit.stderr_tail lines", exit.stderr_tail_size(), 0, kMaxTailLines));
  WorkerExit result;
  result.local_rank = exit.local_rank();
  result.rank = exit.rank();
  result.pid = exit.pid();
  result.exit_code = exit.exit_code();
  result.signal = exit.signal();
  result.dumped_core = exit.dumped_core();
  result.after_stop = exit.after_stop();
  result.killed_by_us = exit.killed_by_us();
  result.failed_before_stop = exit.failed_before_stop();
  result.error_message = exit.error_message();
  result.traceback = exit.traceback();
  result.error_json = exit.error_json();
  result.stderr_tail.assign(exit.stderr_tail().begin(), exit.stderr_tail().end());
  result.last_step = exit.last_step();
  result.log_path = exit.log_path();
  result.exited_unix_ns = exit.exited_unix_ns();
  if (exit.has_error_timestamp_s()) {
    result.error_timestamp_s = exit.error_timestamp_s();
  }
  return result;
}

void EncodeAssignment(const RankAssignment& assignment, v1::RankAssignment* out) {
  out->set_generation(assignment.generation.value());
  out->set_group_rank(assignment.group_rank);
  out->set_group_world_size(assignment.group_world_size);
  out->set_rank_offset(assignment.rank_offset);
  out->set_world_size(assignment.world_size);
  out->set_local_world_size(assignment.local_world_size);
  out->set_role(Cut(assignment.role, kMaxNameBytes));
  out->set_role_rank_offset(assignment.role_rank_offset);
  out->set_role_world_size(assignment.role_world_size);
  out->set_restart_count(assignment.restart_count);
  out->set_max_restarts(assignment.max_restarts);
  out->set_launch_id(Cut(assignment.launch_id, kMaxNameBytes));
  out->set_world_of_attempt(assignment.world_of_attempt);
  out->set_earlier_restarts(assignment.earlier_restarts);
}

absl::Status CheckAssignment(const v1::RankAssignment& in) {
  RETURN_IF_ERROR(CheckGeneration("assignment.generation", in.generation()));
  RETURN_IF_ERROR(CheckRange("assignment.world_size", in.world_size(), 1, kMaxWorldSize));
  const int64_t workers = in.local_world_size();
  RETURN_IF_ERROR(CheckRange("assignment.local_world_size", workers, 1, kMaxWorkersPerNode));
  RETURN_IF_ERROR(
      CheckRange("assignment.rank_offset", in.rank_offset(), 0, in.world_size() - workers));
  RETURN_IF_ERROR(
      CheckRange("assignment.group_world_size", in.group_world_size(), 1, in.world_size()));
  RETURN_IF_ERROR(
      CheckRange("assignment.group_rank", in.group_rank(), 0, in.group_world_size() - 1));
  RETURN_IF_ERROR(
      CheckRange("assignment.role_world_size", in.role_world_size(), workers, in.world_size()));
  RETURN_IF_ERROR(CheckRange("assignment.role_rank_offset", in.role_rank_offset(), 0,
                             in.role_world_size() - workers));
  RETURN_IF_ERROR(CheckRange("assignment.max_restarts", in.max_restarts(), 0, kMaxInt));
  RETURN_IF_ERROR(CheckRange("assignment.restart_count", in.restart_count(), 0, in.max_restarts()));
  RETURN_IF_ERROR(CheckRange("assignment.world_of_attempt", in.world_of_attempt(), 0, kMaxInt));
  RETURN_IF_ERROR(CheckRange("assignment.earlier_restarts", in.earlier_restarts(), 0,
                             kMaxInt - in.max_restarts()));
  RETURN_IF_ERROR(CheckName("assignment.role", in.role()));
  return CheckName("assignment.launch_id", in.launch_id());
}

absl::StatusOr<RankAssignment> DecodeAssignment(const v1::RankAssignment& in) {
  RETURN_IF_ERROR(CheckAssignment(in));
  RankAssignment result;
  result.generation = Generation(in.generation());
  result.group_rank = in.group_rank();
  result.group_world_size = in.group_world_size();
  result.rank_offset = in.rank_offset();
  result.world_size = in.world_size();
  result.local_world_size = in.local_world_size();
  result.role = in.role();
  result.role_rank_offset = in.role_rank_offset();
  result.role_world_size = in.role_world_size();
  result.restart_count = in.restart_count();
  result.max_restarts = in.max_restarts();
  result.launch_id = in.launch_id();
  result.world_of_attempt = in.world_of_attempt();
  result.earlier_restarts = in.earlier_restarts();
  return result;
}

/// Accepts only the kinds that NodeFaulted may carry: the coordinator derives the others itself, or
/// they need a worker.
absl::StatusOr<CauseKind> DecodeFault(v1::CauseKind kind) {
  switch (kind) {
    case v1::CAUSE_KIND_KEEPER_DIED:
    case v1::CAUSE_KIND_PREPARE_FAILED:
    case v1::CAUSE_KIND_SPAWN_FAILED:
    case v1::CAUSE_KIND_NODE_WEDGED:
      return static_cast<CauseKind>(kind - v1::CAUSE_KIND_WORKER_FAILED);
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("fault kind is ", kind, ", which no node reports"));
  }
}

absl::StatusOr<Duration> DecodeAge(int64_t age_ns) {
  RETURN_IF_ERROR(CheckRange("age_ns", age_ns, 0, kMaxNanoseconds));
  return Duration(age_ns);
}

// The wire's numbers are the enum's, shifted by one for UNSPECIFIED.
static_assert(static_cast<int>(CauseKind::kWorkerFailed) + 1 == v1::CAUSE_KIND_WORKER_FAILED);
static_assert(static_cast<int>(CauseKind::kNodeWedged) + 1 == v1::CAUSE_KIND_NODE_WEDGED);
static_assert(static_cast<int>(CauseKind::kCannotStart) + 1 == v1::CAUSE_KIND_CANNOT_START);
static_assert(static_cast<int>(CauseKind::kWorkerHung) + 1 == v1::CAUSE_KIND_WORKER_HUNG);

// --- Agent -> coordinator

struct AgentEncoder {
  v1::AgentMessage* out;

  void operator()(const AgentJoined& joined) const {
    EncodeNode(joined.node, out->mutable_joined()->mutable_node());
    out->mutable_joined()->set_highest_seen(joined.highest_seen.value());
    out->mutable_joined()->set_cannot_run(Cut(joined.cannot_run, kMaxErrorTextBytes));
    EncodeBuild(joined.build, out->mutable_joined()->mutable_build());
  }
  void operator()(const AgentHeartbeat& heartbeat) const {
    v1::Progress* progress = out->mutable_heartbeat()->mutable_progress();
    progress->set_step(heartbeat.progress.step);
    progress->set_total(heartbeat.progress.total);
    progress->set_text(Cut(heartbeat.progress.text, kMaxNameBytes));
    out->mutable_heartbeat()->set_asks(heartbeat.asks);
  }
  void operator()(const AgentPrepared& prepared) const {
    v1::AgentPrepared* message = out->mutable_prepared();
    if (prepared.store.has_value()) {
      EncodeStore(*prepared.store, message->mutable_store());
    }
  }
  void operator()(const AgentStarted&) const { out->mutable_started(); }
  void operator()(const WorkerExited& exited) const {
    EncodeExit(exited.exit, out->mutable_worker_exited()->mutable_exit());
    out->mutable_worker_exited()->set_age_ns(exited.age.count());
  }
  void operator()(const WorkersEnded& ended) const {
    for (const WorkerExit& exit : ended.exits) {
      EncodeExit(exit, out->mutable_workers_ended()->add_exits());
    }
  }
  void operator()(const NodeFaulted& faulted) const {
    out->mutable_faulted()->set_kind(
        static_cast<v1::CauseKind>(static_cast<int>(faulted.kind) + 1));
    out->mutable_faulted()->set_what(Cut(faulted.what, kMaxErrorTextBytes));
    out->mutable_faulted()->set_age_ns(faulted.age.count());
  }
  void operator()(const WorkersStopped&) const { out->mutable_stopped(); }
  void operator()(const AgentLeft& left) const {
    out->mutable_left()->set_signal(left.signal);
    out->mutable_left()->set_workers_running(left.workers_running);
  }
};

absl::StatusOr<AgentMessage> DecodeBody(const v1::AgentMessage& in) {
  switch (in.message_case()) {
    case v1::AgentMessage::kJoined: {
      ASSIGN_OR_RETURN(NodeInfo node, DecodeNode(in.joined().node()));
      RETURN_IF_ERROR(CheckGeneration("joined.highest_seen", in.joined().highest_seen()));
      RETURN_IF_ERROR(
          CheckLength("joined.cannot_run", in.joined().cannot_run().size(), kMaxErrorTextBytes));
      ASSIGN_OR_RETURN(BuildInfo build, DecodeBuild(in.joined().build()));
      return AgentJoined{std::move(node), Generation(in.joined().highest_seen()),
                         in.joined().cannot_run(), std::move(build)};
    }
    case v1::AgentMessage::kHeartbeat: {
      const v1::Progress& progress = in.heartbeat().progress();
      RETURN_IF_ERROR(CheckLength("progress.text", progress.text().size(), kMaxNameBytes));
      return AgentHeartbeat{{progress.step(), progress.total(), progress.text()},
                            in.heartbeat().asks()};
    }
    case v1::AgentMessage::kPrepared: {
      AgentPrepared prepared;
      if (in.prepared().has_store()) {
        ASSIGN_OR_RETURN(prepared.store, DecodeStore(in.prepared().store()));
      }
      return prepared;
    }
    case v1::AgentMessage::kStarted:
      return AgentStarted{};
    case v1::AgentMessage::kWorkerExited: {
      ASSIGN_OR_RETURN(WorkerExit exit, DecodeExit(in.worker_exited().exit()));
      ASSIGN_OR_RETURN(const Duration age, DecodeAge(in.worker_exited().age_ns()));
      return WorkerExited{std::move(exit), age};
    }
    case v1::AgentMessage::kWorkersEnded: {
      WorkersEnded ended;
      for (const v1::WorkerExit& exit : in.workers_ended().exits()) {
        ASSIGN_OR_RETURN(WorkerExit decoded, DecodeExit(exit));
        ended.exits.push_back(std::move(decoded));
      }
      return ended;
    }
    case v1::AgentMessage::kFaulted: {
      ASSIGN_OR_RETURN(const CauseKind kind, DecodeFault(in.faulted().kind()));
      ASSIGN_OR_RETURN(const Duration age, DecodeAge(in.faulted().age_ns()));
      return NodeFaulted{kind, in.faulted().what(), age};
    }
    case v1::AgentMessage::kStopped:
      return WorkersStopped{};
    case v1::AgentMessage::kLeft:
      RETURN_IF_ERROR(CheckRange("left.signal", in.left().signal(), 0, kMaxSignal));
      return AgentLeft{in.left().signal(), in.left().workers_running()};
    case v1::AgentMessage::kAside:  // Nothing of the machines'.
    case v1::AgentMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("agent message without a known content");
}

// --- Coordinator -> agent

void EncodeTerms(const JobTerms& terms, v1::JobTerms* out) {
  out->set_min_nodes(terms.min_nodes);
  out->set_max_nodes(terms.max_nodes);
  out->set_max_restarts(terms.max_restarts);
  out->set_join_timeout_ns(terms.join_timeout.count());
  out->set_last_call_ns(terms.last_call.count());
}

absl::StatusOr<JobTerms> DecodeTerms(const v1::JobTerms& in) {
  RETURN_IF_ERROR(CheckRange("terms.min_nodes", in.min_nodes(), 1, in.max_nodes()));
  RETURN_IF_ERROR(CheckRange("terms.max_restarts", in.max_restarts(), 0, kMaxInt));
  RETURN_IF_ERROR(CheckRange("terms.join_timeout_ns", in.join_timeout_ns(), 0, kMaxNanoseconds));
  RETURN_IF_ERROR(CheckRange("terms.last_call_ns", in.last_call_ns(), 0, kMaxNanoseconds));
  return JobTerms{in.min_nodes(), in.max_nodes(), in.max_restarts(), Duration(in.join_timeout_ns()),
                  Duration(in.last_call_ns())};
}

absl::StatusOr<AdmitAgent> DecodeAdmit(const v1::AdmitAgent& in) {
  RETURN_IF_ERROR(CheckRange("admit.node_lease_ns", in.node_lease_ns(), 0, kMaxNanoseconds));
  AdmitAgent admit{.node_lease = Duration(in.node_lease_ns()),
                   .may_be_taken_over = in.may_be_taken_over()};
  if (in.has_terms()) {
    ASSIGN_OR_RETURN(admit.terms, DecodeTerms(in.terms()));
  }
  ASSIGN_OR_RETURN(admit.build, DecodeBuild(in.build()));
  return admit;
}

struct CoordinatorEncoder {
  v1::CoordinatorMessage* out;

  void operator()(const AdmitAgent& admit) const {
    out->mutable_admit()->set_node_lease_ns(admit.node_lease.count());
    out->mutable_admit()->set_may_be_taken_over(admit.may_be_taken_over);
    if (admit.terms.has_value()) {
      EncodeTerms(*admit.terms, out->mutable_admit()->mutable_terms());
    }
    EncodeBuild(admit.build, out->mutable_admit()->mutable_build());
  }
  void operator()(const RejectAgent& reject) const {
    out->mutable_reject()->set_reason(Cut(reject.reason, kMaxErrorTextBytes));
    out->mutable_reject()->set_rejoin(reject.rejoin);
  }
  void operator()(const PrepareGeneration& prepare) const {
    EncodeAssignment(prepare.assignment, out->mutable_prepare()->mutable_assignment());
  }
  void operator()(const CommitGeneration& commit) const {
    EncodeStore(commit.store, out->mutable_commit()->mutable_store());
  }
  void operator()(const StopWorkers& stop) const {
    out->mutable_stop()->set_signal(stop.signal);
    out->mutable_stop()->set_grace_ns(stop.grace.count());
    out->mutable_stop()->set_reason(Cut(stop.reason, kMaxErrorTextBytes));
  }
  void operator()(const ReleaseAgent& release) const {
    out->mutable_release()->set_exit_code(release.exit_code);
    out->mutable_release()->set_reason(Cut(release.reason, kMaxErrorTextBytes));
    out->mutable_release()->set_cut_off(release.cut_off);
    out->mutable_release()->set_job_goes_on(release.job_goes_on);
  }
  void operator()(const PassSignal& pass) const {
    out->mutable_pass_signal()->set_signal(pass.signal);
  }
  void operator()(const HeartbeatHeard&) const { out->mutable_heartbeat_heard(); }
  void operator()(const LeftOut& left_out) const {
    out->mutable_left_out()->set_why(Cut(left_out.why, kMaxErrorTextBytes));
  }
};

absl::StatusOr<CoordinatorMessage> DecodeBody(const v1::CoordinatorMessage& in) {
  switch (in.message_case()) {
    case v1::CoordinatorMessage::kAdmit:
      return DecodeAdmit(in.admit());
    case v1::CoordinatorMessage::kReject:
      return RejectAgent{in.reject().reason(), in.reject().rejoin()};
    case v1::CoordinatorMessage::kPrepare: {
      ASSIGN_OR_RETURN(RankAssignment assignment, DecodeAssignment(in.prepare().assignment()));
      return PrepareGeneration{std::move(assignment)};
    }
    case v1::CoordinatorMessage::kCommit: {
      ASSIGN_OR_RETURN(StoreEndpoint store, DecodeStore(in.commit().store()));
      return CommitGeneration{std::move(store)};
    }
    case v1::CoordinatorMessage::kStop:
      RETURN_IF_ERROR(CheckRange("stop.signal", in.stop().signal(), 1, kMaxSignal));
      RETURN_IF_ERROR(CheckRange("stop.grace_ns", in.stop().grace_ns(), 0, kMaxNanoseconds));
      return StopWorkers{in.stop().signal(), Duration(in.stop().grace_ns()), in.stop().reason()};
    case v1::CoordinatorMessage::kRelease:
      RETURN_IF_ERROR(CheckRange("release.exit_code", in.release().exit_code(), 0, 255));
      return ReleaseAgent{in.release().exit_code(), in.release().reason(), in.release().cut_off(),
                          in.release().job_goes_on()};
    case v1::CoordinatorMessage::kPassSignal:
      RETURN_IF_ERROR(CheckRange("pass_signal.signal", in.pass_signal().signal(), 1, kMaxSignal));
      return PassSignal{in.pass_signal().signal()};
    case v1::CoordinatorMessage::kHeartbeatHeard:
      return HeartbeatHeard{};
    case v1::CoordinatorMessage::kLeftOut:
      return LeftOut{in.left_out().why()};
    case v1::CoordinatorMessage::kAside:  // Nothing of the machines'.
    case v1::CoordinatorMessage::MESSAGE_NOT_SET:
      break;
  }
  return absl::InvalidArgumentError("coordinator message without a known content");
}

}  // namespace

v1::AgentMessage Encode(const FromAgent& message, const std::string& job_id) {
  v1::AgentMessage out;
  out.set_job_id(job_id);
  out.set_incarnation(message.incarnation.value());
  out.set_generation(message.generation.value());
  std::visit(AgentEncoder{&out}, message.message);
  return out;
}

v1::CoordinatorMessage Encode(const ToAgent& message, const std::string& job_id) {
  v1::CoordinatorMessage out;
  out.set_job_id(job_id);
  out.set_incarnation(message.incarnation.value());
  out.set_generation(message.generation.value());
  std::visit(CoordinatorEncoder{&out}, message.message);
  return out;
}

absl::StatusOr<FromAgent> Decode(const v1::AgentMessage& message) {
  if (message.incarnation() == 0) {
    return absl::InvalidArgumentError("incarnation is 0");
  }
  RETURN_IF_ERROR(CheckGeneration("generation", message.generation()));
  ASSIGN_OR_RETURN(AgentMessage body, DecodeBody(message));
  if (const auto* joined = std::get_if<AgentJoined>(&body);
      joined != nullptr && joined->node.incarnation.value() != message.incarnation()) {
    return absl::InvalidArgumentError("node.incarnation differs from the envelope's incarnation");
  }
  return FromAgent{Incarnation(message.incarnation()), Generation(message.generation()),
                   std::move(body)};
}

absl::StatusOr<ToAgent> Decode(const v1::CoordinatorMessage& message) {
  RETURN_IF_ERROR(CheckGeneration("generation", message.generation()));
  ASSIGN_OR_RETURN(CoordinatorMessage body, DecodeBody(message));
  return ToAgent{Incarnation(message.incarnation()), Generation(message.generation()),
                 std::move(body)};
}

}  // namespace fsdprun
