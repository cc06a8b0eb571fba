#include "agent/local/agent_memo.h"

#include <utility>
#include <variant>

#include "absl/status/status.h"
#include "agent/rpc/codec.h"
#include "base/status_macros.h"
#include "fsdprun/v1/memo.pb.h"

namespace fsdprun {
namespace {

constexpr int kLastPhase = static_cast<int>(node::Phase::kGone);

int64_t ToNs(MonoTime time) { return time.time_since_epoch().count(); }
MonoTime FromNs(int64_t ns) { return MonoTime(Duration(ns)); }

void EncodeLeaving(const node::Leaving& leaving, v1::Leaving* out) {
  out->set_is_released(leaving.is_released);
  out->set_was_cut_off(leaving.was_cut_off);
  out->set_leaves_job(leaving.leaves_job);
  out->set_signal(leaving.signal);
  out->set_exit_code(leaving.exit_code);
  out->set_message(leaving.message);
  out->set_exit_at_ns(ToNs(leaving.exit_at));
}

node::Leaving DecodeLeaving(const v1::Leaving& in) {
  return {.is_released = in.is_released(),
          .was_cut_off = in.was_cut_off(),
          .leaves_job = in.leaves_job(),
          .signal = in.signal(),
          .exit_code = in.exit_code(),
          .message = in.message(),
          .exit_at = FromNs(in.exit_at_ns())};
}

void EncodeNode(const NodeRecord& node, v1::AgentMemo* out) {
  out->set_incarnation(node.incarnation.value());
  out->set_highest_seen(node.highest_seen.value());
  if (node.assignment.generation != Generation()) {
    *out->mutable_prepare() = Encode(
        ToAgent{node.incarnation, node.assignment.generation, PrepareGeneration{node.assignment}},
        "");
    out->mutable_master()->set_address(node.assignment.master_addr);
    out->mutable_master()->set_port(node.assignment.master_port);
  }
  out->set_phase(static_cast<int>(node.phase));
  for (const NodeRecord::Report& report : node.reports) {
    *out->add_reports() =
        Encode(FromAgent{node.incarnation, node.assignment.generation, report.message}, "");
    out->add_reported_ns(ToNs(report.happened_at));
  }
  out->set_kill_at_ns(ToNs(node.kill_at));
  out->set_stop_signal(node.stop_signal);
  out->set_stopped_at_ns(ToNs(node.stopped_at));
  out->set_killed_at_ns(ToNs(node.killed_at));
  if (node.leaving.has_value()) {
    EncodeLeaving(*node.leaving, out->mutable_leaving());
  }
  out->set_was_admitted(node.was_admitted);
  out->set_may_be_taken_over(node.may_be_taken_over);
  out->set_node_lease_ns(node.node_lease.count());
}

absl::Status DecodeGeneration(const v1::AgentMemo& in, NodeRecord* node) {
  if (in.has_prepare()) {
    ASSIGN_OR_RETURN(ToAgent order, Decode(in.prepare()));
    auto* prepare = std::get_if<PrepareGeneration>(&order.message);
    if (prepare == nullptr) {
      return absl::InvalidArgumentError("memo: the assignment is another message");
    }
    node->assignment = std::move(prepare->assignment);
    node->assignment.master_addr = in.master().address();
    node->assignment.master_port = in.master().port();
  }
  const bool holds_none = node->phase == node::Phase::kIdle;
  return in.has_prepare() == holds_none
             ? absl::InvalidArgumentError("memo: the phase does not fit the generation")
             : absl::OkStatus();
}

absl::Status DecodeReports(const v1::AgentMemo& in, NodeRecord* node) {
  if (in.reports_size() != in.reported_ns_size()) {
    return absl::InvalidArgumentError("memo: reports without their times");
  }
  for (int i = 0; i < in.reports_size(); ++i) {
    ASSIGN_OR_RETURN(FromAgent report, Decode(in.reports(i)));
    node->reports.push_back({std::move(report.message), FromNs(in.reported_ns(i))});
  }
  return absl::OkStatus();
}

absl::StatusOr<NodeRecord> DecodeNode(const v1::AgentMemo& in) {
  NodeRecord node;
  node.incarnation = Incarnation(in.incarnation());
  node.highest_seen = Generation(in.highest_seen());
  if (in.incarnation() == 0 || in.phase() < 0 || in.phase() > kLastPhase) {
    return absl::InvalidArgumentError("memo: no incarnation, or no such phase");
  }
  node.phase = static_cast<node::Phase>(in.phase());
  RETURN_IF_ERROR(DecodeGeneration(in, &node));
  RETURN_IF_ERROR(DecodeReports(in, &node));
  node.kill_at = FromNs(in.kill_at_ns());
  node.stop_signal = in.stop_signal();
  node.stopped_at = FromNs(in.stopped_at_ns());
  node.killed_at = FromNs(in.killed_at_ns());
  if (in.has_leaving()) {
    node.leaving = DecodeLeaving(in.leaving());
  }
  node.was_admitted = in.was_admitted();
  node.may_be_taken_over = in.may_be_taken_over();
  node.node_lease = Duration(in.node_lease_ns());
  return node;
}

}  // namespace

std::string EncodeMemo(const AgentMemo& memo) {
  v1::AgentMemo out;
  EncodeNode(memo.node, &out);
  out.set_logs(memo.dirs.logs);
  out.set_spool(memo.dirs.spool);
  out.set_vitals(memo.dirs.vitals);
  out.set_store_pid(memo.store.pid);
  out.set_store_start_ticks(memo.store.start_time_ticks);
  out.set_timer_file(memo.timer_file);
  return out.SerializeAsString();
}

absl::StatusOr<AgentMemo> DecodeMemo(absl::string_view text) {
  v1::AgentMemo in;
  if (!in.ParseFromArray(text.data(), static_cast<int>(text.size()))) {
    return absl::InvalidArgumentError("memo: not one of this release");
  }
  AgentMemo memo;
  ASSIGN_OR_RETURN(memo.node, DecodeNode(in));
  memo.dirs = {.logs = in.logs(), .spool = in.spool(), .vitals = in.vitals()};
  memo.store = {.pid = in.store_pid(), .start_time_ticks = in.store_start_ticks()};
  memo.timer_file = in.timer_file();
  return memo;
}

}  // namespace fsdprun
