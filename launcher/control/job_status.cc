#include "launcher/control/job_status.h"

#include <string_view>
#include <variant>

#include "launcher/coordinator/world.h"
#include "proto/cluster/build_info.h"

namespace fsdprun {
namespace {

std::string_view StateName(job::NodeState state) {
  switch (state) {
    case job::NodeState::kSpare:
      return "spare";
    case job::NodeState::kCleaning:
      return "cleaning";
    case job::NodeState::kMember:
      return "member";
    case job::NodeState::kReleased:
      return "released";
  }
  return "";
}

void Describe(const job::Node& node, const JobMachine& machine, MonoTime now, v1::NodeStatus* out) {
  const World::Member* member =
      node.IsMember() ? machine.world().Find(node.info.incarnation) : nullptr;
  out->set_name(node.info.name);
  out->set_address(node.info.address);
  out->set_state(std::string(StateName(node.state)));
  out->set_group_rank(member != nullptr ? node.group_rank : -1);
  out->set_first_rank(member != nullptr ? member->assignment.rank_offset : -1);
  out->set_workers(node.info.local_world_size);
  out->set_connected(node.connected);
  out->set_suspect(node.suspect);
  out->set_leaving(node.leaving);
  out->set_draining(node.leaving && machine.IsDrained(node.info.incarnation));
  out->set_left_out(node.is_left_out);
  out->set_heard_age_ns((now - node.last_heard).count());
}

void DescribeProgress(const JobMachine& machine, const JobFacts& facts, MonoTime now,
                      v1::JobStatus* out) {
  const Progress& progress = machine.progress();
  out->mutable_progress()->set_step(progress.step);
  out->mutable_progress()->set_total(progress.total);
  out->mutable_progress()->set_text(progress.text);
  if (facts.progress_at.has_value()) {
    out->set_progress_age_ns((now - *facts.progress_at).count());
  }
}

void DescribeCoordinator(const JobFacts& facts, v1::CoordinatorStatus* out) {
  out->set_node(facts.node);
  out->set_pid(facts.pid);
  out->set_endpoint(facts.endpoint);
  out->mutable_build()->set_protocol(kProtocol);
  out->mutable_build()->set_release(kRelease);
}

std::vector<int> RanksOf(const std::vector<watch::RankPlace>& places) {
  std::vector<int> ranks;
  ranks.reserve(places.size());
  for (const watch::RankPlace& place : places) {
    ranks.push_back(place.rank);
  }
  return ranks;
}

void DescribeFindings(const JobFacts& facts, MonoTime now, v1::JobStatus* out) {
  for (const auto& [id, found] : facts.findings) {
    v1::Finding* finding = out->add_findings();
    finding->set_id(id);
    finding->set_kind(found.kind);
    finding->set_what(found.what);
    finding->set_age_ns((now - found.at).count());
    for (const int rank : found.ranks) {
      finding->add_ranks(rank);
    }
    finding->set_rank_count(found.rank_count);
  }
}

}  // namespace

void NoteFinding(const watch::Finding& finding, MonoTime now, JobFacts* facts) {
  if (const auto* hang = std::get_if<watch::HangFound>(&finding)) {
    facts->findings[hang->id] = {"hang", hang->what, RanksOf(hang->culprits), hang->culprit_count,
                                 now};
  } else if (const auto* slow = std::get_if<watch::SlowFound>(&finding)) {
    facts->findings[slow->id] = {"straggler", slow->what, RanksOf(slow->ranks), slow->rank_count,
                                 now};
  } else if (const auto* over = std::get_if<watch::HangEnded>(&finding)) {
    facts->findings.erase(over->id);
  } else if (const auto* fast = std::get_if<watch::SlowEnded>(&finding)) {
    facts->findings.erase(fast->id);
  }
}

v1::JobStatus DescribeJob(const JobMachine& machine, const JobFacts& facts, MonoTime now) {
  v1::JobStatus status;
  status.set_job(facts.run_id);
  status.set_launch_id(machine.launch_id());
  status.set_phase(std::string(job::PhaseName(machine.phase())));
  status.set_reason(machine.reason());
  status.set_generation(machine.generation().value());
  status.set_world_size(machine.world().world_size());
  status.set_min_nodes(machine.min_nodes());
  status.set_max_nodes(machine.max_nodes());
  status.set_restarts_used(machine.restarts_used());
  status.set_max_restarts(facts.max_restarts);
  status.set_membership_changes(machine.membership_changes());
  status.set_age_ns((now - facts.began).count());
  DescribeProgress(machine, facts, now, &status);
  for (const job::Node& node : machine.nodes()) {
    Describe(node, machine, now, status.add_nodes());
  }
  DescribeFindings(facts, now, &status);
  DescribeCoordinator(facts, status.mutable_coordinator());
  if (const std::optional<job::StopStatus> stop = machine.stop()) {
    status.set_kill_in_ns((stop->kill_at - now).count());
  }
  if (machine.outcome().has_value()) {
    status.set_exit_code(machine.outcome()->exit_code);
  }
  if (!facts.last_failure.empty()) {
    status.set_last_failure(facts.last_failure);
    status.set_last_failure_age_ns((now - facts.last_failure_at).count());
  }
  return status;
}

}  // namespace fsdprun
