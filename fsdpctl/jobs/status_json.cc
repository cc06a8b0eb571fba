#include "fsdpctl/jobs/status_json.h"

#include <algorithm>
#include <cmath>
#include <utility>
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
                        {"rank_count", std::max(finding.rank_count(), finding.ranks_size())},
                        {"age_s", JsonSeconds(finding.age_ns())}});
  }
  return findings;
}

/// What a worker does not say is 0, if no other value is named.
json PositiveOrNull(int64_t number) { return number == 0 ? json(nullptr) : json(number); }
json TimeOrNull(int64_t ns) { return ns == 0 ? json(nullptr) : json(JsonSeconds(ns)); }
json TextOrNull(const std::string& text) { return text.empty() ? json(nullptr) : json(text); }

json OwnJson(const v1::OwnVitals& own) {
  const bool has_stepped = own.step_ns() > 0;
  const auto of_step = [&](int64_t ns) {
    return has_stepped ? json(JsonSeconds(ns)) : json(nullptr);
  };
  const bool is_inside = !own.collective().empty();
  return {
      {"doing", TextOrNull(own.phase())},
      {"step", NumberOrNull(own.step())},
      {"total", NumberOrNull(own.total())},
      {"step_age_s", own.step() < 0 ? json(nullptr) : json(JsonSeconds(own.step_age_ns()))},
      {"loss", std::isfinite(own.loss()) ? json(own.loss()) : json(nullptr)},
      {"tokens_per_s", own.tokens_per_second() > 0 ? json(own.tokens_per_second()) : json(nullptr)},
      {"tokens", PositiveOrNull(own.tokens())},
      {"step_s", TimeOrNull(own.step_ns())},
      {"collective_wait_s", of_step(own.collective_wait_ns())},
      {"data_wait_s", of_step(own.data_wait_ns())},
      {"save_s", of_step(own.save_ns())},
      {"collectives_begun", own.collectives_begun()},
      {"collectives_ended", own.collectives_ended()},
      {"collective", TextOrNull(own.collective())},
      {"unit", TextOrNull(own.unit())},
      {"collective_age_s", is_inside ? json(JsonSeconds(own.collective_age_ns())) : json()},
      {"collective_bytes", is_inside ? json(own.collective_bytes()) : json()},
      {"device_bytes", PositiveOrNull(own.device_bytes())},
      {"device_peak_bytes", PositiveOrNull(own.device_peak_bytes())}};
}

json WorkerJson(const v1::WorkerStatus& worker) {
  const v1::WorkerVitals& vitals = worker.vitals();
  const bool is_known = worker.has_vitals();
  const auto known = [&](json value) { return is_known ? std::move(value) : json(nullptr); };
  return {{"rank", worker.rank()},
          {"ended", worker.has_ended()},
          {"age_s", known(JsonSeconds(worker.vitals_age_ns()))},
          {"pid", known(vitals.pid())},
          {"state", known(std::string(1, static_cast<char>(vitals.state())))},
          {"cpus", worker.has_cpus() ? json(worker.cpus()) : json(nullptr)},
          {"rss_bytes", known(vitals.rss_bytes())},
          {"pss_bytes", PositiveOrNull(vitals.pss_bytes())},
          {"own", vitals.has_own() ? OwnJson(vitals.own()) : json(nullptr)}};
}

json WorkersJson(const v1::JobStatus& status) {
  json workers = json::array();
  for (const v1::WorkerStatus& worker : status.workers()) {
    workers.push_back(WorkerJson(worker));
  }
  return workers;
}

}  // namespace

std::string StatusJson(const v1::JobStatus& status, bool with_workers) {
  json nodes = json::array();
  for (const v1::NodeStatus& node : status.nodes()) {
    nodes.push_back(NodeJson(node));
  }
  const v1::CoordinatorStatus& coordinator = status.coordinator();
  json shown = {{"v", kJsonVersion},
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
                {"kill_in_s",
                 status.has_kill_in_ns() ? json(JsonSeconds(status.kill_in_ns())) : json(nullptr)},
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
                {"ledger", LedgerJson(status)}};
  if (with_workers) {
    shown["workers"] = WorkersJson(status);
  }
  return JsonText(shown);
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
