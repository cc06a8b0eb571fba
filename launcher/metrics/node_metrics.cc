#include "launcher/metrics/node_metrics.h"

#include <algorithm>
#include <array>
#include <string>

namespace fsdprun {
namespace {

using End = WorkerTally::End;

constexpr std::array kNodePhases = {
    node::Phase::kIdle,     node::Phase::kPreparing, node::Phase::kPrepared,
    node::Phase::kSpawning, node::Phase::kRunning,   node::Phase::kStopping,
    node::Phase::kKilling,  node::Phase::kWedged,    node::Phase::kGone};

void CollectAgent(const NodeSnapshot& node, const NodeTally& tally, MetricPage* page) {
  for (const node::Phase phase : kNodePhases) {
    const std::string name(node::PhaseName(phase));
    page->Gauge("agent_phase", "1 for the phase that this node is in.", node.phase == name ? 1 : 0,
                {{"phase", name}});
  }
  page->Gauge("agent_generation", "Number of the world that this node has, or had, a part in.",
              static_cast<double>(node.generation));
  page->Gauge("agent_connected", "1 while this node is connected to the coordinator.",
              node.has_coordinator ? 1 : 0);
  page->Counter("agent_coordinator_losses_total", "How often that connection broke.",
                static_cast<double>(tally.coordinator_losses()));
  page->Gauge("agent_keeper_up", "1 while the parent of this node's workers lives.",
              node.has_keeper ? 1 : 0);
  page->Counter("agent_keeper_deaths_total", "How often it died.",
                static_cast<double>(tally.keeper_deaths()));
  page->Gauge("agent_lost_logs", "Streams of this world's workers whose log cannot be written.",
              node.lost_logs);
  page->Counter("agent_dropped_output_bytes_total",
                "Output of workers that had no log and that the console did not take in time.",
                static_cast<double>(node.dropped_output_bytes));
  page->Counter("fenced_requests_total",
                "Messages that were dropped because they were about what has been replaced.",
                static_cast<double>(node.fenced), {{"by", "agent"}});
}

void CollectCounts(const NodeTally& tally, MetricPage* page) {
  const auto count = [&tally](std::optional<End> end) {
    return static_cast<double>(
        std::count_if(tally.workers().begin(), tally.workers().end(),
                      [end](const auto& worker) { return worker.second.end == end; }));
  };
  constexpr char kHelp[] = "Workers of this node's latest world, by state.";
  page->Gauge("workers", kHelp, count(std::nullopt), {{"state", "running"}});
  page->Gauge("workers", kHelp, count(End::kWell), {{"state", "succeeded"}});
  page->Gauge("workers", kHelp, count(End::kBadly), {{"state", "failed"}});
  page->Gauge("workers", kHelp, count(End::kStopped), {{"state", "stopped"}});
  page->Counter("worker_starts_total", "Workers that were started on this node.",
                static_cast<double>(tally.starts()));
  constexpr char kEnds[] = "Workers that have ended on this node; stopped: once they had to.";
  page->Counter("worker_exits_total", kEnds, static_cast<double>(tally.ends(End::kWell)),
                {{"how", "succeeded"}});
  page->Counter("worker_exits_total", kEnds, static_cast<double>(tally.ends(End::kBadly)),
                {{"how", "failed"}});
  page->Counter("worker_exits_total", kEnds, static_cast<double>(tally.ends(End::kStopped)),
                {{"how", "stopped"}});
}

void CollectVitals(const WorkerVitals& vitals, const MetricPage::Labels& labels, MetricPage* page) {
  if (vitals.usage.has_value()) {
    page->Counter("worker_cpu_seconds_total",
                  "Processor time of a worker, without the processes that it has started.",
                  vitals.usage->cpu_s, labels);
    page->Gauge("worker_resident_memory_bytes", "Memory of a worker; shared pages count whole.",
                static_cast<double>(vitals.usage->resident_bytes), labels);
    page->Gauge("worker_start_time_seconds", "When a worker began.", vitals.usage->began_unix_s,
                labels);
  }
  if (vitals.proportional_bytes.has_value()) {
    page->Gauge("worker_proportional_memory_bytes",
                "Memory of a worker; of shared pages its part, as of the scrape before.",
                static_cast<double>(*vitals.proportional_bytes), labels);
  }
}

}  // namespace

void CollectNode(const NodeSnapshot& node, const NodeTally& tally, MonoTime now, MetricPage* page) {
  CollectAgent(node, tally, page);
  CollectCounts(tally, page);
  for (const auto& [local_rank, worker] : tally.workers()) {
    if (worker.end.has_value()) {
      continue;
    }
    const std::string rank = std::to_string(worker.rank);
    const std::string local = std::to_string(local_rank);
    const MetricPage::Labels labels = {{"rank", rank}, {"local_rank", local}};
    if (const auto vitals = node.vitals.find(local_rank); vitals != node.vitals.end()) {
      CollectVitals(vitals->second, labels, page);
    }
    if (worker.step >= 0) {
      page->Gauge("worker_step", "The latest step that a worker has reported.",
                  static_cast<double>(worker.step), labels);
      page->Gauge("worker_progress_age_seconds", "How long ago it did.",
                  ToSeconds(now - worker.step_at), labels);
    }
  }
}

}  // namespace fsdprun
