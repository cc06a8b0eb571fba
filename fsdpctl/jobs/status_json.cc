#include "fsdpctl/jobs/status_json.h"

#include <vector>

#include "fsdpctl/jobs/json_text.h"

namespace fsdprun {
namespace {

using json = nlohmann::ordered_json;

/// -1 stands for none.
json NumberOrNull(int64_t number) { return number < 0 ? json(nullptr) : json(number); }

json NodeJson(const v1::NodeStatus& node) {
  return {{"name", node.name()},
          {"address", node.address()},
          {"state", node.state()},
          {"group_rank", NumberOrNull(node.group_rank())},
          {"first_rank", NumberOrNull(node.first_rank())},
          {"workers", node.workers()},
          {"connected", node.connected()},
          {"suspect", node.suspect()},
          {"leaving", node.leaving()},
          {"draining", node.draining()},
          {"left_out", node.left_out()},
          {"heard_age_s", JsonSeconds(node.heard_age_ns())}};
}

json ProgressJson(const v1::JobStatus& status) {
  if (!status.has_progress_age_ns()) {
    return nullptr;
  }
  return {{"step", NumberOrNull(status.progress().step())},
          {"total", NumberOrNull(status.progress().total())},
          {"text", status.progress().text()},
          {"age_s", JsonSeconds(status.progress_age_ns())}};
}

json FailureJson(const v1::JobStatus& status) {
  if (!status.has_last_failure_age_ns()) {
    return nullptr;
  }
  return {{"what", status.last_failure()}, {"age_s", JsonSeconds(status.last_failure_age_ns())}};
}

/// Of a release that keeps none there is none.
json LedgerJson(const v1::JobStatus& status) {
  if (!status.has_ledger()) {
    return nullptr;
  }
  const v1::TimeLedger& ledger = status.ledger();
  json buckets = json::object();
  for (const v1::TimeLedger::Entry& entry : ledger.entries()) {
    buckets[entry.bucket()] = JsonSeconds(entry.ns());
  }
  return {
      {"wall_s", JsonSeconds(ledger.wall_ns())},
      {"buckets_s", std::move(buckets)},
      {"goodput_ratio", ledger.has_goodput_ratio() ? json(ledger.goodput_ratio()) : json(nullptr)},
      {"repeated_steps", ledger.repeated_steps()}};
}

json FindingsJson(const v1::JobStatus& status) {
  json findings = json::array();
  for (const v1::Finding& finding : status.findings()) {
    findings.push_back({{"id", finding.id()},
                        {"kind", finding.kind()},
                        {"what", finding.what()},
                        {"ranks", std::vector<int>(finding.ranks().begin(), finding.ranks().end())},
                        {"age_s", JsonSeconds(finding.age_ns())}});
  }
  return findings;
}

}  // namespace

std::string StatusJson(const v1::JobStatus& status) {
  json nodes = json::array();
  for (const v1::NodeStatus& node : status.nodes()) {
    nodes.push_back(NodeJson(node));
  }
  const v1::CoordinatorStatus& coordinator = status.coordinator();
  return JsonText({{"v", kJsonVersion},
                   {"job", status.job()},
                   {"phase", status.phase()},
                   {"reason", status.reason()},
                   {"generation", status.generation()},
                   {"world_size", status.world_size()},
                   {"min_nodes", status.min_nodes()},
                   {"max_nodes", status.max_nodes()},
                   {"restarts_used", status.restarts_used()},
                   {"max_restarts", status.max_restarts()},
                   {"membership_changes", status.membership_changes()},
                   {"age_s", JsonSeconds(status.age_ns())},
                   {"progress", ProgressJson(status)},
                   {"kill_in_s", status.has_kill_in_ns() ? json(JsonSeconds(status.kill_in_ns()))
                                                         : json(nullptr)},
                   {"exit_code", status.has_exit_code() ? json(status.exit_code()) : json(nullptr)},
                   {"last_failure", FailureJson(status)},
                   {"findings", FindingsJson(status)},
                   {"coordinator",
                    {{"node", coordinator.node()},
                     {"pid", coordinator.pid()},
                     {"endpoint", coordinator.endpoint()},
                     {"release", coordinator.build().release()},
                     {"protocol", coordinator.build().protocol()}}},
                   {"nodes", std::move(nodes)},
                   {"ledger", LedgerJson(status)}});
}

std::string JobListJson(const std::vector<JobEntry>& jobs) {
  json list = json::array();
  for (const JobEntry& job : jobs) {
    list.push_back({{"job", job.run_id},
                    {"pid", job.pid},
                    {"node", job.node},
                    {"endpoint", job.endpoint},
                    {"began_unix_ms", job.began_ms}});
  }
  return JsonText({{"v", kJsonVersion}, {"jobs", std::move(list)}});
}

}  // namespace fsdprun
