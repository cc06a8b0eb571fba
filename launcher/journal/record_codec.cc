#include "launcher/journal/record_codec.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "agent/rpc/codec.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr int64_t kMaxCount = std::numeric_limits<int>::max() / 2;
constexpr int kMaxSignalNumber = 64;
/// Of any message that only carries a part.
constexpr Incarnation kAnybody{1};
/// About two years.
constexpr int64_t kMaxPauseNs = int64_t{1} << 56;

absl::Status InRange(absl::string_view field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", expected ", low, " to ", high));
}

// --- Parts that messages have, too: as their codec writes and checks them.

v1::NodeInfo EncodePart(const NodeInfo& node) {
  return Encode(FromAgent{node.incarnation, {}, AgentJoined{node, {}, {}}}, "").joined().node();
}

absl::StatusOr<NodeInfo> DecodePart(const v1::NodeInfo& node) {
  v1::AgentMessage message;
  message.set_incarnation(node.incarnation());
  *message.mutable_joined()->mutable_node() = node;
  ASSIGN_OR_RETURN(FromAgent decoded, Decode(message));
  return std::get<AgentJoined>(std::move(decoded.message)).node;
}

v1::RankAssignment EncodePart(const RankAssignment& assignment) {
  return Encode(ToAgent{kAnybody, assignment.generation, PrepareGeneration{assignment}}, "")
      .prepare()
      .assignment();
}

absl::StatusOr<RankAssignment> DecodePart(const v1::RankAssignment& assignment) {
  v1::CoordinatorMessage message;
  *message.mutable_prepare()->mutable_assignment() = assignment;
  ASSIGN_OR_RETURN(ToAgent decoded, Decode(message));
  return std::get<PrepareGeneration>(std::move(decoded.message)).assignment;
}

v1::StoreEndpoint EncodePart(const StoreEndpoint& store) {
  return Encode(ToAgent{kAnybody, {}, CommitGeneration{store}}, "").commit().store();
}

absl::StatusOr<StoreEndpoint> DecodePart(const v1::StoreEndpoint& store) {
  v1::CoordinatorMessage message;
  *message.mutable_commit()->mutable_store() = store;
  ASSIGN_OR_RETURN(ToAgent decoded, Decode(message));
  return std::get<CommitGeneration>(std::move(decoded.message)).store;
}

v1::WorkerExit EncodePart(const WorkerExit& exit) {
  return Encode(FromAgent{kAnybody, {}, WorkerExited{exit}}, "").worker_exited().exit();
}

absl::StatusOr<WorkerExit> DecodePart(const v1::WorkerExit& exit) {
  v1::AgentMessage message;
  message.set_incarnation(kAnybody.value());
  *message.mutable_worker_exited()->mutable_exit() = exit;
  ASSIGN_OR_RETURN(FromAgent decoded, Decode(message));
  return std::get<WorkerExited>(std::move(decoded.message)).exit;
}

// --- The world

void EncodeWorld(const job::WorldRecord& world, v1::WorldRecord* out) {
  out->set_phase(static_cast<v1::WorldRecord::Phase>(world.phase));
  out->set_world_size(world.world_size);
  if (world.store.port > 0) {
    *out->mutable_store() = EncodePart(world.store);
  }
  for (const job::WorldRecord::Member& member : world.members) {
    v1::WorldRecord::Member* encoded = out->add_members();
    encoded->set_incarnation(member.incarnation.value());
    *encoded->mutable_assignment() = EncodePart(member.assignment);
  }
  out->set_gone_succeeded(world.gone_succeeded);
  out->set_stopped_early(world.phase == job::WorldRecord::Phase::kStopping && !world.was_committed);
  out->set_stop_kind(static_cast<v1::WorldRecord::StopKind>(world.stop_kind));
  out->set_stop_signal(world.stop_signal);
  out->set_stop_grace_ns(world.stop_grace.count());
  out->set_stop_why(world.stop_why);
}

absl::StatusOr<job::WorldRecord> DecodeWorld(const v1::WorldRecord& in) {
  RETURN_IF_ERROR(InRange("world.phase", in.phase(), 0, v1::WorldRecord::PHASE_STOPPING));
  RETURN_IF_ERROR(
      InRange("world.stop_kind", in.stop_kind(), 0, v1::WorldRecord::STOP_KIND_OPERATOR));
  RETURN_IF_ERROR(InRange("world.world_size", in.world_size(), 0, kMaxCount));
  RETURN_IF_ERROR(InRange("world.gone_succeeded", in.gone_succeeded(), 0, kMaxCount));
  RETURN_IF_ERROR(InRange("world.stop_signal", in.stop_signal(), 1, kMaxSignalNumber));
  RETURN_IF_ERROR(InRange("world.stop_grace_ns", in.stop_grace_ns(), 0, kMaxPauseNs));
  job::WorldRecord world;
  world.phase = static_cast<job::WorldRecord::Phase>(in.phase());
  world.world_size = in.world_size();
  if (in.has_store()) {
    ASSIGN_OR_RETURN(world.store, DecodePart(in.store()));
  }
  for (const v1::WorldRecord::Member& member : in.members()) {
    ASSIGN_OR_RETURN(RankAssignment assignment, DecodePart(member.assignment()));
    world.members.push_back({Incarnation(member.incarnation()), std::move(assignment)});
  }
  world.gone_succeeded = in.gone_succeeded();
  world.was_committed = world.phase == job::WorldRecord::Phase::kRunning ||
                        (world.phase == job::WorldRecord::Phase::kStopping && !in.stopped_early());
  world.stop_kind = static_cast<job::StopKind>(in.stop_kind());
  world.stop_signal = in.stop_signal();
  world.stop_grace = Duration(in.stop_grace_ns());
  world.stop_why = in.stop_why();
  return world;
}

static_assert(static_cast<int>(job::WorldRecord::Phase::kStopping) ==
              v1::WorldRecord::PHASE_STOPPING);
static_assert(static_cast<int>(job::StopKind::kFailure) == v1::WorldRecord::STOP_KIND_FAILURE);
static_assert(static_cast<int>(job::StopKind::kOperator) == v1::WorldRecord::STOP_KIND_OPERATOR);

// --- Nodes that are left out

void EncodeQuarantined(const job::QuarantinedNode& node, v1::QuarantinedNode* out) {
  out->set_name(node.node.name);
  out->set_address(node.node.address);
  out->set_breaks(node.breaks);
  if (node.worker) {
    out->mutable_worker()->set_rank(node.worker->rank);
    out->mutable_worker()->set_exit_code(node.worker->exit_code);
    out->mutable_worker()->set_signal(node.worker->signal);
  }
  out->set_what(node.what);
  out->set_times(node.times);
}

absl::StatusOr<job::QuarantinedNode> DecodeQuarantined(const v1::QuarantinedNode& in) {
  RETURN_IF_ERROR(InRange("quarantine.breaks", in.breaks(), 1, kMaxCount));
  RETURN_IF_ERROR(InRange("quarantine.times", in.times(), 0, kMaxCount));
  job::QuarantinedNode node{.node = {in.name(), in.address()},
                            .breaks = in.breaks(),
                            .worker = {},
                            .what = in.what(),
                            .times = std::max(in.times(), 1)};
  if (in.has_worker()) {
    RETURN_IF_ERROR(InRange("quarantine.signal", in.worker().signal(), 0, kMaxSignalNumber));
    node.worker = {in.worker().rank(), in.worker().exit_code(), in.worker().signal()};
  }
  return node;
}

absl::StatusOr<job::NodeLimits> DecodeLimits(const v1::NodeLimits& in) {
  RETURN_IF_ERROR(InRange("scaled.min_nodes", in.min_nodes(), 1, in.max_nodes()));
  RETURN_IF_ERROR(InRange("scaled.max_nodes", in.max_nodes(), 1, kMaxCount));
  return job::NodeLimits{in.min_nodes(), in.max_nodes()};
}

// --- The outcome

void EncodeFailure(const Failure& failure, v1::FailureRecord* out) {
  out->set_kind(static_cast<v1::CauseKind>(static_cast<int>(failure.kind) + 1));
  out->set_generation(failure.generation.value());
  out->set_node_name(failure.node_name);
  out->set_node_address(failure.node_address);
  out->set_group_rank(failure.group_rank);
  if (failure.worker) {
    *out->mutable_worker() = EncodePart(*failure.worker);
  }
  out->set_what(failure.what);
}

absl::StatusOr<Failure> DecodeFailure(const v1::FailureRecord& in) {
  RETURN_IF_ERROR(
      InRange("failure.kind", in.kind(), v1::CAUSE_KIND_WORKER_FAILED, v1::CAUSE_KIND_WORKER_HUNG));
  Failure failure;
  failure.kind = static_cast<CauseKind>(in.kind() - 1);
  failure.generation = Generation(in.generation());
  failure.node_name = in.node_name();
  failure.node_address = in.node_address();
  failure.group_rank = in.group_rank();
  if (in.has_worker()) {
    ASSIGN_OR_RETURN(failure.worker, DecodePart(in.worker()));
  }
  failure.what = in.what();
  return failure;
}

void EncodeOutcome(const JobOutcome& outcome, v1::OutcomeRecord* out) {
  out->set_kind(static_cast<v1::OutcomeRecord::Kind>(outcome.kind));
  out->set_exit_code(outcome.exit_code);
  out->set_signal(outcome.signal);
  out->set_grace_cut_short(outcome.grace_cut_short);
  out->set_reason(outcome.reason);
  out->set_restarts_used(outcome.restarts_used);
  out->set_max_restarts(outcome.max_restarts);
  out->set_generation(outcome.generation.value());
  if (outcome.store.port > 0) {
    *out->mutable_store() = EncodePart(outcome.store);
  }
  out->set_workers(outcome.ends.workers);
  out->set_workers_well(outcome.ends.well);
  out->set_workers_killed(outcome.ends.killed);
  out->set_workers_failed(outcome.ends.failed);
  for (const std::string& note : outcome.ends.notes) {
    out->add_worker_notes(note);
  }
  for (const std::string& sentence : outcome.left_out) {
    out->add_left_out(sentence);
  }
  if (outcome.failure) {
    EncodeFailure(outcome.failure->root, out->add_failures());
    for (const Failure& other : outcome.failure->others) {
      EncodeFailure(other, out->add_failures());
    }
    out->set_other_failures(outcome.failure->other_failures);
    out->set_collateral(outcome.failure->collateral);
  }
}

absl::StatusOr<JobOutcome> DecodeOutcome(const v1::OutcomeRecord& in) {
  RETURN_IF_ERROR(InRange("outcome.kind", in.kind(), 0, v1::OutcomeRecord::KIND_STOPPED_BY_SIGNAL));
  RETURN_IF_ERROR(InRange("outcome.exit_code", in.exit_code(), 0, 255));
  RETURN_IF_ERROR(InRange("outcome.signal", in.signal(), 0, kMaxSignalNumber));
  JobOutcome outcome;
  outcome.kind = static_cast<OutcomeKind>(in.kind());
  outcome.exit_code = in.exit_code();
  outcome.signal = in.signal();
  outcome.grace_cut_short = in.grace_cut_short();
  outcome.reason = in.reason();
  outcome.restarts_used = in.restarts_used();
  outcome.max_restarts = in.max_restarts();
  outcome.generation = Generation(in.generation());
  if (in.has_store()) {
    ASSIGN_OR_RETURN(outcome.store, DecodePart(in.store()));
  }
  outcome.ends = {in.workers(),
                  in.workers_well(),
                  in.workers_killed(),
                  in.workers_failed(),
                  {in.worker_notes().begin(), in.worker_notes().end()}};
  outcome.left_out = {in.left_out().begin(), in.left_out().end()};
  for (const v1::FailureRecord& failure : in.failures()) {
    ASSIGN_OR_RETURN(Failure decoded, DecodeFailure(failure));
    if (!outcome.failure) {
      outcome.failure = {std::move(decoded), {}, in.other_failures(), in.collateral()};
    } else {
      outcome.failure->others.push_back(std::move(decoded));
    }
  }
  return outcome;
}

static_assert(static_cast<int>(OutcomeKind::kStoppedBySignal) ==
              v1::OutcomeRecord::KIND_STOPPED_BY_SIGNAL);

absl::Status CheckNumbers(const v1::JobRecord& in) {
  const std::pair<absl::string_view, int64_t> counts[] = {
      {"formations", in.formations()},
      {"restarts_used", in.restarts_used()},
      {"membership_changes", in.membership_changes()},
      {"worlds_of_attempt", in.worlds_of_attempt()},
      {"failures_in_a_row", in.failures_in_a_row()}};
  for (const auto& [field, value] : counts) {
    RETURN_IF_ERROR(InRange(field, value, 0, kMaxCount));
  }
  RETURN_IF_ERROR(InRange("pause_ns", in.pause_ns(), 0, kMaxPauseNs));
  constexpr uint64_t kMaxGenerationNumber = uint64_t{1} << 48;
  for (const uint64_t generation : {in.generation(), in.generation_floor()}) {
    if (generation > kMaxGenerationNumber) {
      return absl::InvalidArgumentError(absl::StrCat("generation is ", generation));
    }
  }
  return in.has_operator_signal()
             ? InRange("operator_signal", in.operator_signal(), 1, kMaxSignalNumber)
             : absl::OkStatus();
}

}  // namespace

std::string Describe(const JournaledJob& job) {
  return absl::StrCat("run id '", job.run_id, "', --nnodes ", job.min_nodes,
                      job.max_nodes == job.min_nodes ? "" : absl::StrCat(":", job.max_nodes),
                      ", --max-restarts ", job.max_restarts);
}

v1::JobRecord Encode(const job::Record& record, const JournaledJob& job) {
  v1::JobRecord out;
  out.set_run_id(job.run_id);
  out.set_min_nodes(job.min_nodes);
  out.set_max_nodes(job.max_nodes);
  out.set_max_restarts(job.max_restarts);
  out.set_launch_id(record.launch_id);
  out.set_generation(record.generation.value());
  out.set_generation_floor(record.generation_floor.value());
  out.set_formations(record.formations);
  out.set_restarts_used(record.budgets.restarts_used);
  out.set_membership_changes(record.budgets.membership_changes);
  out.set_worlds_of_attempt(record.budgets.worlds_of_attempt);
  out.set_failures_in_a_row(record.budgets.failures_in_a_row);
  if (record.operator_signal) {
    out.set_operator_signal(*record.operator_signal);
  }
  out.set_agent_told_signal(record.agent_told_signal);
  out.set_operator_hurries(record.operator_hurries);
  out.set_pause_ns(record.pause.count());
  EncodeWorld(record.world, out.mutable_world());
  for (const job::NodeRecord& node : record.nodes) {
    v1::NodeRecord* encoded = out.add_nodes();
    *encoded->mutable_node() = EncodePart(node.info);
    encoded->set_group_rank(node.group_rank);
    encoded->set_leaving(node.leaving);
    encoded->set_sequence(node.sequence);
  }
  for (const job::QuarantinedNode& node : record.quarantine) {
    EncodeQuarantined(node, out.add_quarantine());
  }
  if (record.scaled) {
    out.mutable_scaled()->set_min_nodes(record.scaled->min_nodes);
    out.mutable_scaled()->set_max_nodes(record.scaled->max_nodes);
  }
  for (const Incarnation incarnation : record.drained) {
    out.add_drained(incarnation.value());
  }
  if (record.outcome) {
    EncodeOutcome(*record.outcome, out.mutable_outcome());
  }
  return out;
}

JournaledJob JobOf(const v1::JobRecord& record) {
  return {record.run_id(), record.min_nodes(), record.max_nodes(), record.max_restarts()};
}

absl::StatusOr<job::Record> Decode(const v1::JobRecord& in) {
  RETURN_IF_ERROR(CheckNumbers(in));
  job::Record record;
  record.launch_id = in.launch_id();
  record.generation = Generation(in.generation());
  record.generation_floor = Generation(in.generation_floor());
  record.formations = in.formations();
  record.budgets = {in.restarts_used(), in.membership_changes(), in.worlds_of_attempt(),
                    in.failures_in_a_row()};
  if (in.has_operator_signal()) {
    record.operator_signal = in.operator_signal();
  }
  record.agent_told_signal = in.agent_told_signal();
  record.operator_hurries = in.operator_hurries();
  record.pause = Duration(in.pause_ns());
  ASSIGN_OR_RETURN(record.world, DecodeWorld(in.world()));
  for (const v1::NodeRecord& node : in.nodes()) {
    ASSIGN_OR_RETURN(NodeInfo info, DecodePart(node.node()));
    record.nodes.push_back({std::move(info), node.group_rank(), node.leaving(), node.sequence()});
  }
  for (const v1::QuarantinedNode& node : in.quarantine()) {
    ASSIGN_OR_RETURN(job::QuarantinedNode decoded, DecodeQuarantined(node));
    record.quarantine.push_back(std::move(decoded));
  }
  if (in.has_scaled()) {
    ASSIGN_OR_RETURN(record.scaled, DecodeLimits(in.scaled()));
  }
  for (const uint64_t incarnation : in.drained()) {
    record.drained.emplace_back(incarnation);
  }
  if (in.has_outcome()) {
    ASSIGN_OR_RETURN(record.outcome, DecodeOutcome(in.outcome()));
  }
  record.is_over = record.outcome.has_value();
  return record;
}

}  // namespace fsdprun
