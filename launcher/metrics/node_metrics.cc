#include "launcher/metrics/node_metrics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <utility>

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

double InSeconds(int64_t ns) { return ToSeconds(Duration(ns)); }

/// Null if nothing is known of it.
const v1::WorkerVitals* VitalsOf(const v1::NodeVitals& node, const WorkerTally& worker) {
  const auto it =
      std::find_if(node.workers().begin(), node.workers().end(), [&worker](const auto& each) {
        return each.rank() == worker.rank && each.pid() == worker.pid;
      });
  return it == node.workers().end() ? nullptr : &*it;
}

void CollectSeen(const v1::WorkerVitals& worker, const MetricPage::Labels& labels,
                 MetricPage* page) {
  page->Counter("worker_cpu_seconds_total",
                "Processor time of a worker, without the processes that it has started.",
                InSeconds(worker.cpu_ns()), labels);
  page->Gauge("worker_resident_memory_bytes", "Memory of a worker; shared pages count whole.",
              static_cast<double>(worker.rss_bytes()), labels);
  if (worker.pss_bytes() > 0) {
    page->Gauge("worker_proportional_memory_bytes",
                "Memory of a worker; of shared pages its part, as of some seconds ago.",
                static_cast<double>(worker.pss_bytes()), labels);
  }
}

/// What the latest whole step took.
void CollectStep(const v1::OwnVitals& own, const MetricPage::Labels& labels, MetricPage* page) {
  if (own.step_ns() <= 0) {
    return;
  }
  page->Gauge("worker_step_seconds", "What a worker's latest whole step took.",
              InSeconds(own.step_ns()), labels);
  constexpr char kHelp[] =
      "Of it, what the worker waited for others in collectives, and for data, and saved.";
  for (const auto& [in, ns] :
       {std::pair("collectives", own.collective_wait_ns()), std::pair("data", own.data_wait_ns()),
        std::pair("saving", own.save_ns())}) {
    MetricPage::Labels all = labels;
    all.emplace_back("in", in);
    page->Gauge("worker_step_part_seconds", kHelp, InSeconds(ns), all);
  }
}

void CollectSaid(const v1::OwnVitals& own, const MetricPage::Labels& labels, MetricPage* page) {
  if (std::isfinite(own.loss())) {
    page->Gauge("worker_loss", "The latest loss that a worker has told.", own.loss(), labels);
  }
  if (own.tokens_per_second() > 0) {
    page->Gauge("worker_tokens_per_second", "Tokens that a worker has said it trains on.",
                own.tokens_per_second(), labels);
  }
  CollectStep(own, labels, page);
  if (own.device_bytes() > 0) {
    page->Gauge("worker_device_memory_bytes", "Memory of its device that a worker uses.",
                static_cast<double>(own.device_bytes()), labels);
    page->Gauge("worker_device_memory_peak_bytes", "The most of it so far.",
                static_cast<double>(own.device_peak_bytes()), labels);
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
    if (const v1::WorkerVitals* vitals = VitalsOf(node.vitals, worker)) {
      CollectSeen(*vitals, labels, page);
      if (vitals->has_own()) {
        CollectSaid(vitals->own(), labels, page);
      }
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
