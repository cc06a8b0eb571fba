// Nodes that keep failing: what follows from what Quarantine finds.

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "launcher/coordinator/job_machine_internal.h"

namespace fsdprun {

/// The world has stopped; its members are still known.
void JobMachine::JudgeWorld(Out& out) {
  std::optional<job::WorldBreak> failure;
  if (world_.stop().kind == StopKind::kFailure && !world_.failures().empty()) {
    const FailureReport report = world_.failures().Report();
    if (!report.root.node_name.empty()) {  // Else it is nobody's.
      failure = job::BreakOf(report, /*had_others=*/false);
      failure->had_others = HasOthersThan(failure->node);
    }
  }
  for (const Quarantine::Finding& finding : quarantine_.WorldEnded(std::move(failure), out.now)) {
    TellOf(finding, out);
  }
}

bool JobMachine::HasOthersThan(const job::NodeKey& node) const {
  return std::any_of(world_.members().begin(), world_.members().end(), [&](const auto& member) {
    return job::KeyOf(membership_.nodes().At(member->incarnation).info) != node;
  });
}

void JobMachine::TellOf(const Quarantine::Finding& finding, Out& out) {
  switch (finding.kind) {
    case Quarantine::Finding::Kind::kLeftOut:
      out.effects.news.emplace_back(job::NodeQuarantined{finding.node, spec_.quarantine_window,
                                                         job::LengthOf(finding.node, spec_),
                                                         quarantine_.Describe(finding.node)});
      break;
    case Quarantine::Finding::Kind::kTakenAgain:
      out.effects.news.emplace_back(job::QuarantineLifted{finding.node, finding.why});
      break;
    case Quarantine::Finding::Kind::kNeeded:
      out.effects.news.emplace_back(job::QuarantineWaived{
          finding.node, "the job needs " + std::to_string(spec_.min_nodes) + " nodes, and " +
                            std::to_string(membership_.wanted()) + " others are there"});
      return;
  }
  for (Node& node : membership_.nodes()) {
    if (job::KeyOf(node.info) == finding.node.node) {
      LeaveOutIfHeld(node);
      SendTo(node, Generation{},
             LeftOut{node.is_left_out ? quarantine_.Describe(finding.node) : ""}, out);
    }
  }
}

/// Before it is looked who there is for a world.
void JobMachine::EndQuarantines(Out& out) {
  for (const Quarantine::Finding& finding : quarantine_.EndOverdue(out.now)) {
    TellOf(finding, out);
  }
}

/// Before its members are made out of `chosen`.
void JobMachine::TellOfNeeded(const std::vector<Candidate>& chosen, Out& out) {
  std::vector<job::NodeKey> needed;
  for (const Candidate& candidate : chosen) {
    if (membership_.nodes().At(candidate.node.incarnation).is_left_out) {
      needed.push_back(job::KeyOf(candidate.node));
    }
  }
  for (const Quarantine::Finding& finding : quarantine_.Needed(needed)) {
    TellOf(finding, out);
  }
}

void JobMachine::LeaveOutIfHeld(Node& node) {
  membership_.SetLeftOut(node, quarantine_.Find(job::KeyOf(node.info)) != nullptr);
}

/// On a new stream. A member that is needed now may not be in the next world.
void JobMachine::TellIfLeftOut(const Node& node, Out& out) {
  if (const job::QuarantinedNode* held = quarantine_.Find(job::KeyOf(node.info))) {
    SendTo(node, Generation{}, LeftOut{quarantine_.Describe(*held)}, out);
  }
}

std::vector<std::string> JobMachine::DescribeLeftOut() const {
  std::vector<std::string> sentences;
  for (const job::QuarantinedNode& node : quarantine_.ToRecord()) {
    sentences.push_back(quarantine_.Describe(node));
  }
  return sentences;
}

}  // namespace fsdprun
