#include "launcher/events/event_line.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"

namespace fsdprun {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kSchema = 1;
/// Of a text that a worker wrote.
constexpr size_t kTextMax = 4096;

std::string Cut(const std::string& text) { return text.substr(0, kTextMax); }

double InSeconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

const char* NameOf(OutcomeKind kind) {
  switch (kind) {
    case OutcomeKind::kSucceeded:
      return "succeeded";
    case OutcomeKind::kFailed:
      return "failed";
    case OutcomeKind::kStoppedBySignal:
      return "stopped_by_signal";
  }
  return "?";
}

Json EndOf(const WorkerExit& exit) {
  Json json;
  json["rank"] = exit.rank;
  json["local_rank"] = exit.local_rank;
  json["pid"] = exit.pid;
  json["exit_code"] = exit.signal != 0 ? -exit.signal : exit.exit_code;
  json["last_step"] = exit.last_step;
  json["after_stop"] = exit.after_stop;
  if (!exit.error_message.empty()) {
    json["error"] = Cut(exit.error_message);
  }
  return json;
}

Json CauseOf(const Failure& failure) {
  Json json;
  json["kind"] = CauseName(failure.kind);
  json["generation"] = failure.generation.value();
  json["failed_node"] = failure.node_name;
  json["group_rank"] = failure.group_rank;
  json["what"] = Cut(failure.what);
  if (failure.worker.has_value()) {
    json["worker"] = EndOf(*failure.worker);
  }
  return json;
}

/// The event's name and its own fields.
struct Told {
  const char* name;
  Json fields = Json::object();
};

// --- The coordinator's

Told Tell(const job::Stalled& stalled) {
  return {"coordinator_stalled", {{"seconds", InSeconds(stalled.lateness)}}};
}

Told Tell(const job::Warned& warned) { return {"warning", {{"text", warned.text}}}; }

Told Tell(const job::NodeJoined& joined) {
  const NodeInfo& node = joined.node;
  return {"node_joined",
          {{"name", node.name}, {"address", node.address}, {"workers", node.local_world_size}}};
}

Told Tell(const job::NodeLost& lost) {
  return {"node_lost", {{"name", lost.name}, {"why", lost.what}}};
}

Json FieldsOf(const job::QuarantinedNode& node) {
  Json json;
  json["name"] = node.node.name;
  json["address"] = node.node.address;
  return json;
}

Told Tell(const job::NodeQuarantined& quarantined) {
  Told told{"node_quarantined", FieldsOf(quarantined.node)};
  told.fields["failures"] = quarantined.node.breaks;
  told.fields["window_seconds"] = InSeconds(quarantined.window);
  told.fields["quarantine_seconds"] = InSeconds(quarantined.length);
  if (quarantined.node.worker.has_value()) {
    told.fields["rank"] = quarantined.node.worker->rank;
  }
  told.fields["last"] = Cut(quarantined.node.what);
  told.fields["why"] = Cut(quarantined.why);
  return told;
}

Told Tell(const job::QuarantineLifted& lifted) {
  Told told{"quarantine_lifted", FieldsOf(lifted.node)};
  told.fields["why"] = Cut(lifted.why);
  return told;
}

Told Tell(const job::QuarantineWaived& waived) {
  Told told{"quarantine_waived", FieldsOf(waived.node)};
  told.fields["why"] = Cut(waived.why);
  return told;
}

Json FieldsOf(const NodeInfo& node) {
  Json json;
  json["name"] = node.name;
  json["address"] = node.address;
  return json;
}

Told Tell(const job::NodeDraining& draining) {
  Told told{"node_draining", FieldsOf(draining.node)};
  told.fields["group_rank"] = draining.group_rank;
  return told;
}

Told Tell(const job::NodeDrained& drained) { return {"node_drained", FieldsOf(drained.node)}; }

Told Tell(const job::JobScaled& scaled) {
  return {"job_scaled",
          {{"min_nodes", scaled.limits.min_nodes},
           {"max_nodes", scaled.limits.max_nodes},
           {"min_nodes_before", scaled.before.min_nodes},
           {"max_nodes_before", scaled.before.max_nodes}}};
}

Told Tell(const job::WorldFormed& formed) {
  return {"world_formed",
          {{"generation", formed.generation.value()},
           {"nodes", formed.nodes},
           {"workers", formed.workers}}};
}

Told Tell(const job::WorldCommitted& committed) {
  return {"world_committed",
          {{"generation", committed.generation.value()},
           {"store", absl::StrFormat("%s:%d", committed.store.address, committed.store.port)}}};
}

Told Tell(const job::FailureReported& reported) { return {"failure", CauseOf(reported.failure)}; }

Told Tell(const job::WorldStopping& stopping) {
  return {"world_stopping",
          {{"generation", stopping.generation.value()},
           {"cause", CauseName(stopping.kind)},
           {"why", Cut(stopping.why)}}};
}

Told Tell(const job::WorldStopped& stopped) {
  return {"world_stopped", {{"generation", stopped.generation.value()}}};
}

Told Tell(const job::JobFinished& finished) {
  const JobOutcome& outcome = finished.outcome;
  Told told{"job_finished",
            {{"result", NameOf(outcome.kind)},
             {"exit_code", outcome.exit_code},
             {"restarts", outcome.restarts_used},
             {"generation", outcome.generation.value()},
             {"why", Cut(outcome.reason)}}};
  if (outcome.failure.has_value()) {
    told.fields["root_cause"] = CauseOf(outcome.failure->root);
  }
  return told;
}

// --- The watch's

Json PlacesOf(const std::vector<watch::RankPlace>& places) {
  Json json = Json::array();
  for (const watch::RankPlace& place : places) {
    json.push_back({{"rank", place.rank}, {"node", place.node}, {"pid", place.pid}});
  }
  return json;
}

Told Tell(const watch::HangFound& hang) {
  return {"hang",
          {{"id", hang.id},
           {"kind", watch::NameOf(hang.kind)},
           {"culprits", PlacesOf(hang.culprits)},
           {"culprit_count", hang.culprit_count},
           {"lasted_seconds", InSeconds(hang.lasted)},
           {"limit_seconds", InSeconds(hang.limit)},
           {"action", hang.action},
           {"what", Cut(hang.what)}}};
}

Told Tell(const watch::HangReported& reported) {
  Told told{"hang_report", {{"id", reported.id}, {"file", reported.file}}};
  Json stacks = Json::array();
  for (const watch::RankStacks& each : reported.stacks) {
    Json json{{"rank", each.place.rank}, {"node", each.place.node}, {"pid", each.place.pid}};
    for (const auto& [name, text] :
         {std::pair("text", &each.text), std::pair("problem", &each.problem)}) {
      if (!text->empty()) {
        json[name] = Cut(*text);
      }
    }
    stacks.push_back(std::move(json));
  }
  told.fields["stacks"] = std::move(stacks);
  return told;
}

Told Tell(const watch::HangEnded& ended) {
  return {"hang_ended",
          {{"id", ended.id}, {"after_seconds", InSeconds(ended.after)}, {"why", ended.what}}};
}

Told Tell(const watch::SlowFound& slow) {
  return {"straggler",
          {{"id", slow.id},
           {"in", watch::NameOf(slow.in)},
           {"ranks", PlacesOf(slow.ranks)},
           {"rank_count", slow.rank_count},
           {"excess", slow.excess},
           {"step_seconds", InSeconds(slow.step_time)},
           {"others_step_seconds", InSeconds(slow.others_step_time)},
           {"what", Cut(slow.what)}}};
}

Told Tell(const watch::SlowEnded& ended) {
  return {"straggler_ended", {{"id", ended.id}, {"why", ended.what}}};
}

// --- An agent's

Told Tell(const node::CoordinatorFound& found) {
  return {"coordinator_found", {{"endpoint", found.endpoint}}};
}

Told Tell(const node::CoordinatorLost& lost) { return {"coordinator_lost", {{"why", lost.why}}}; }

Told Tell(const node::KeeperDied& died) { return {"keeper_died", {{"why", died.what}}}; }

Told Tell(const node::Assigned& assigned) {
  const RankAssignment& place = assigned.assignment;
  return {"assigned",
          {{"generation", place.generation.value()},
           {"group_rank", place.group_rank},
           {"nodes", place.group_world_size},
           {"first_rank", place.rank_offset},
           {"workers", place.local_world_size},
           {"world_size", place.world_size},
           {"restart", place.restart_count}}};
}

Told Tell(const node::WorkersStarted& started) {
  return {"workers_started",
          {{"generation", started.generation.value()},
           {"first_rank", started.rank},
           {"pids", started.pids}}};
}

Told Tell(const node::WorkerEnded& ended) {
  Told told{"worker_ended", {{"generation", ended.generation.value()}}};
  told.fields.update(EndOf(ended.exit));
  return told;
}

Told Tell(const node::WorkersStopping& stopping) {
  return {"workers_stopping",
          {{"generation", stopping.generation.value()},
           {"signal", stopping.signal},
           {"grace_seconds", InSeconds(stopping.grace)},
           {"why", Cut(stopping.why)}}};
}

Told Tell(const node::WorkersKilled& killed) {
  return {"workers_killed", {{"generation", killed.generation.value()}}};
}

Told Tell(const node::AllEnded& ended) {
  return {"all_ended", {{"generation", ended.generation.value()}}};
}

Told Tell(const node::Left& left) {
  return {"agent_left", {{"exit_code", left.exit_code}, {"why", Cut(left.why)}}};
}

std::string LineOf(const Told& told, const char* from, const EventSource& source, int64_t unix_ms) {
  Json line;
  line["v"] = kSchema;
  line["time"] = absl::FormatTime("%Y-%m-%d%ET%H:%M:%E3SZ", absl::FromUnixMillis(unix_ms),
                                  absl::UTCTimeZone());
  line["job"] = source.job;
  line["node"] = source.node;
  line["from"] = from;
  line["event"] = told.name;
  line.update(told.fields);
  return line.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

}  // namespace

std::string_view CauseName(CauseKind kind) {
  switch (kind) {
    case CauseKind::kWorkerFailed:
      return "worker_failed";
    case CauseKind::kNodeLost:
      return "node_lost";
    case CauseKind::kKeeperDied:
      return "keeper_died";
    case CauseKind::kPrepareFailed:
      return "prepare_failed";
    case CauseKind::kSpawnFailed:
      return "spawn_failed";
    case CauseKind::kNodeWedged:
      return "node_wedged";
    case CauseKind::kNodeStuck:
      return "node_stuck";
    case CauseKind::kJoinTimeout:
      return "join_timeout";
    case CauseKind::kCannotStart:
      return "cannot_start";
    case CauseKind::kWorkerHung:
      return "worker_hung";
  }
  return "?";
}

std::string_view CauseName(job::StopKind kind) {
  switch (kind) {
    case job::StopKind::kFailure:
      return "failure";
    case job::StopKind::kMembership:
      return "membership";
    case job::StopKind::kOperator:
      return "operator";
  }
  return "?";
}

std::string FormatEvent(const job::News& news, const EventSource& source, int64_t unix_ms) {
  const Told told = std::visit([](const auto& what) { return Tell(what); }, news);
  return LineOf(told, "coordinator", source, unix_ms);
}

std::string FormatEvent(const watch::Finding& finding, const EventSource& source, int64_t unix_ms) {
  const Told told = std::visit([](const auto& what) { return Tell(what); }, finding);
  return LineOf(told, "coordinator", source, unix_ms);
}

std::string FormatEvent(const node::News& news, const EventSource& source, int64_t unix_ms) {
  const Told told = std::visit([](const auto& what) { return Tell(what); }, news);
  return LineOf(told, "agent", source, unix_ms);
}

}  // namespace fsdprun
