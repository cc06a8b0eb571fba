#include "launcher/metrics/job_metrics.h"

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "launcher/coordinator/job_events.h"
#include "launcher/events/event_line.h"

namespace fsdprun {
namespace {

using Labels = MetricPage::Labels;

constexpr std::array kJobPhases = {job::Phase::kRendezvous, job::Phase::kPreparing,
                                   job::Phase::kRunning,    job::Phase::kStopping,
                                   job::Phase::kReleasing,  job::Phase::kFinished};
constexpr std::array<const char*, 4> kNodeStates = {"member", "spare", "cleaning", "released"};

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }
double FromNs(int64_t ns) { return static_cast<double>(ns) / 1e9; }

void CollectState(const v1::JobStatus& status, MetricPage* page) {
  for (const job::Phase phase : kJobPhases) {
    const std::string name(job::PhaseName(phase));
    page->Gauge("job_phase", "1 for the phase that the job is in.", status.phase() == name ? 1 : 0,
                {{"phase", name}});
  }
  page->Gauge("generation", "Number of the present or the last world; 0 before the first.",
              static_cast<double>(status.generation()));
  page->Gauge("world_size", "Workers of the present or the last world.", status.world_size());
  page->Gauge("nodes_min", "Nodes that the job needs.", status.min_nodes());
  page->Gauge("nodes_max", "Nodes that the job has at most.", status.max_nodes());
  page->Gauge("restart_budget", "Restarts after failures that the job may have (--max-restarts).",
              status.max_restarts());
  page->Gauge("restart_budget_remaining", "How many of them are left.",
              std::max(0, status.max_restarts() - status.restarts_used()));
  page->Counter("restarts_total", "Failed worlds that were followed by another one.",
                status.restarts_used());
  page->Counter("membership_changes_total",
                "Worlds that ended free of charge: nodes came or left, or an operator asked.",
                status.membership_changes());
}

void CollectNodes(const v1::JobStatus& status, MetricPage* page) {
  int disconnected = 0;
  int silent = 0;
  int left_out = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    disconnected += node.connected() ? 0 : 1;
    silent += node.suspect() ? 1 : 0;
    left_out += node.left_out() ? 1 : 0;
  }
  for (const char* state : kNodeStates) {
    const auto count = std::count_if(status.nodes().begin(), status.nodes().end(),
                                     [state](const auto& node) { return node.state() == state; });
    page->Gauge("agents", "Nodes that the coordinator knows, by what they are to the job.",
                static_cast<double>(count), {{"state", state}});
  }
  page->Gauge("agents_disconnected", "Nodes whose connection to the coordinator broke.",
              disconnected);
  page->Gauge("agents_silent", "Nodes that have been silent for longer than they should be.",
              silent);
  page->Gauge("agents_quarantined", "Nodes that are left out because they keep failing.", left_out);
}

bool IsInTrouble(const v1::NodeStatus& node, Duration lease) {
  return node.suspect() || !node.connected() || node.heard_age_ns() > lease.count() / 2;
}

/// The least recently heard first, those with rows of their own: who has one does not change with
/// each look as long as all is well.
std::vector<const v1::NodeStatus*> NodesWithRows(const v1::JobStatus& status, Duration lease) {
  std::vector<const v1::NodeStatus*> nodes;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (status.nodes_size() <= kMaxNodeRows || IsInTrouble(node, lease)) {
      nodes.push_back(&node);
    }
  }
  const auto end = nodes.begin() + std::min<std::ptrdiff_t>(kMaxNodeRows, std::ssize(nodes));
  std::partial_sort(nodes.begin(), end, nodes.end(), [](const auto* a, const auto* b) {
    return a->heard_age_ns() > b->heard_age_ns();
  });
  nodes.erase(end, nodes.end());
  return nodes;
}

void CollectHeartbeats(const v1::JobStatus& status, Duration lease, MetricPage* page) {
  std::set<std::pair<std::string, std::string>> told;
  for (const v1::NodeStatus* node : NodesWithRows(status, lease)) {
    // Several launchers of a machine may have the same name, and no series may be there twice.
    if (told.emplace(node->name(), node->address()).second) {
      page->Gauge("agent_heartbeat_age_seconds",
                  "How long ago a node was last heard of; of many nodes, those in trouble.",
                  FromNs(node->heard_age_ns()),
                  {{"peer", node->name()}, {"address", node->address()}});
    }
  }
  int64_t oldest = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    oldest = std::max(oldest, node.heard_age_ns());
  }
  page->Gauge("agent_heartbeat_age_max_seconds", "The greatest of these ages, of all nodes.",
              FromNs(oldest));
  page->Gauge("agent_lease_seconds", "A node that is silent for so long may be replaced.",
              ToSeconds(lease));
}

void CollectSteps(const v1::JobStatus& status, const TimeLedger& ledger, MetricPage* page) {
  page->Counter("repeated_steps_total",
                "Steps that a later world did again, as far as they were reported.",
                static_cast<double>(ledger.repeated_steps()));
  if (!status.has_progress_age_ns()) {
    return;
  }
  page->Gauge("step", "The latest step that the workers of this world have reported.",
              static_cast<double>(status.progress().step()));
  page->Gauge("progress_age_seconds", "How long ago the workers of this world reported a step.",
              FromNs(status.progress_age_ns()));
  if (status.progress().total() >= 0) {
    page->Gauge("steps_planned", "The step at which the workers will be done.",
                static_cast<double>(status.progress().total()));
  }
}

void CollectFaults(const JobTally& tally, MetricPage* page) {
  for (size_t i = 0; i < JobTally::kFaultKinds; ++i) {
    page->Counter("faults_total", "Worlds in which something has failed, by the root cause.",
                  static_cast<double>(tally.faults()[i]),
                  {{"class", View(CauseName(static_cast<CauseKind>(i)))}});
  }
  for (size_t i = 0; i < JobTally::kStopKinds; ++i) {
    const absl::string_view cause = View(CauseName(static_cast<job::StopKind>(i)));
    constexpr char kHelp[] = "Worlds that were stopped, by why and by what followed.";
    page->Counter("recoveries_total", kHelp, static_cast<double>(tally.recovered()[i]),
                  {{"cause", cause}, {"outcome", "recovered"}});
    page->Counter("recoveries_total", kHelp, static_cast<double>(tally.ended()[i]),
                  {{"cause", cause}, {"outcome", "job_ended"}});
  }
  constexpr char kHelp[] = "From what a world was stopped for until the next one has come so far.";
  page->Histogram("recovery_duration_seconds", kHelp, tally.until_start(), {{"until", "start"}});
  page->Histogram("recovery_duration_seconds", kHelp, tally.until_progress(),
                  {{"until", "progress"}});
  page->Counter("nodes_joined_total", "Nodes that were admitted.",
                static_cast<double>(tally.joined()));
  page->Counter("nodes_lost_total", "Nodes that left, broke off, fell silent or were replaced.",
                static_cast<double>(tally.lost()));
  page->Counter("quarantines_total", "How often a node was left out because it kept failing.",
                static_cast<double>(tally.quarantines()));
}

void CollectTime(const TimeLedger& ledger, MonoTime now, MetricPage* page) {
  const TimeLedger::Times all = ledger.All(now);
  for (size_t i = 0; i < kTimeBuckets; ++i) {
    const Labels labels = {{"bucket", View(TimeBucketName(static_cast<TimeBucket>(i)))}};
    page->Counter("time_seconds_total", "What the job's time went to, as far as it is certain.",
                  ToSeconds(ledger.settled()[i]), labels);
    page->Gauge("time_open_seconds",
                "What goes to that as well, as things look; it may go to another bucket.",
                ToSeconds(all[i] - ledger.settled()[i]), labels);
  }
  page->Gauge("job_age_seconds", "The sum of both: since this coordinator began.",
              ToSeconds(ledger.Wall(now)));
  constexpr char kHelp[] =
      "The productive part of the time; absent if no worker tells of progress.";
  if (const std::optional<double> hour = ledger.Goodput(std::chrono::hours(1), now)) {
    page->Gauge("goodput_ratio", kHelp, *hour, {{"window", "1h"}});
    page->Gauge("goodput_ratio", kHelp, *ledger.Goodput(Duration::max(), now),
                {{"window", "total"}});
  }
}

void CollectCoordinator(const JobHistory& history, const JobCounts& counts, MetricPage* page) {
  page->Gauge("coordinator_start_time_seconds",
              "When this coordinator began; another value is another coordinator.",
              counts.began_unix_s);
  page->Gauge("coordinator_took_over", "1 if it goes on for one before it.",
              history.took_over() ? 1 : 0);
  page->Counter("coordinator_stalled_seconds_total",
                "How long in all its process did not run, stopped or on a machine that was.",
                ToSeconds(history.tally().stalled()));
  page->Gauge("coordinator_outbox_messages", "Messages to nodes that wait to be sent.",
              static_cast<double>(counts.outbox));
  page->Counter("fenced_requests_total",
                "Messages that were dropped because they were about what has been replaced.",
                static_cast<double>(counts.fenced), {{"by", "coordinator"}});
  page->Counter("denied_total", "Connections and calls that were refused.",
                static_cast<double>(history.tally().refused()));
}

}  // namespace

void CollectJob(const v1::JobStatus& status, const JobHistory& history, const JobCounts& counts,
                MonoTime now, MetricPage* page) {
  CollectState(status, page);
  CollectNodes(status, page);
  CollectHeartbeats(status, counts.node_lease, page);
  CollectSteps(status, history.ledger(), page);
  CollectFaults(history.tally(), page);
  CollectTime(history.ledger(), now, page);
  CollectCoordinator(history, counts, page);
  if (status.has_exit_code()) {
    page->Gauge("job_exit_code", "How the job ends, once that is decided.", status.exit_code());
  }
}

}  // namespace fsdprun
