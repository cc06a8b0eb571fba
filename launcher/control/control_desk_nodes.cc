// Questions that change the nodes of the job.

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "base/descriptor_limit.h"
#include "base/status_macros.h"
#include "launcher/control/control_desk.h"
#include "launcher/control/node_choice.h"

namespace fsdprun {
namespace {

std::string NodeCount(int count) { return absl::StrCat(count, count == 1 ? " node" : " nodes"); }

std::string Limits(int min, int max) {
  return min == max ? absl::StrCat(min) : absl::StrCat(min, ":", max);
}

/// Of a world that is being prepared, or runs; else 0.
int PresentMembers(const JobMachine& machine) {
  const job::Phase phase = machine.phase();
  const bool has_world = phase == job::Phase::kPreparing || phase == job::Phase::kRunning;
  return has_world ? static_cast<int>(machine.world().members().size()) : 0;
}

int Waiting(const NodeTable& nodes) {
  int waiting = 0;
  for (const job::Node& node : nodes) {
    const bool may_join = node.state == job::NodeState::kSpare && node.connected;
    waiting += may_join && !node.leaving && !node.is_left_out ? 1 : 0;
  }
  return waiting;
}

/// What becomes of the world once the job needs `min` nodes and takes `max`; begins with "; ".
std::string WhatFollows(const JobMachine& machine, int min, int max) {
  const int members = PresentMembers(machine);
  const std::string generation = absl::StrCat("; generation ", machine.generation().value());
  const bool is_preparing = machine.phase() == job::Phase::kPreparing;
  if (members == 0) {
    return "";
  }
  if (members > max && !is_preparing && machine.world().HasAnySucceeded()) {
    return absl::StrCat(generation, " goes on with ", NodeCount(members),
                        ", because some of its workers have done their work");
  }
  if (members > max) {
    return absl::StrCat(generation, " ends, and the next has ", max, " of its ",
                        NodeCount(members));
  }
  if (members < min) {
    return is_preparing ? absl::StrCat(generation, " ends, and the job waits for nodes")
                        : absl::StrCat(generation, " goes on with ", NodeCount(members),
                                       "; the next needs ", min);
  }
  const int waiting = Waiting(machine.nodes());
  return members < max && waiting > 0
             ? absl::StrCat("; of ", NodeCount(waiting), " that ", waiting == 1 ? "waits" : "wait",
                            ", as many as are missing join")
             : "";
}

}  // namespace

void ControlDesk::SayOrRefuse(const Caller& caller, const absl::StatusOr<std::string>& what) {
  if (what.ok()) {
    Say(caller, *what);
  } else {
    caller.first->Refuse(caller.second, what.status());
  }
}

// --- Draining

/// A node without a part in the present world is missed by nobody.
absl::Status ControlDesk::CheckOthers(const job::Node& node, bool may_wait) const {
  const std::string name = DescribeNode(node);
  if (facts_.endpoint.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("node ", name,
                     " is the only one of this job, and no other can join it; "
                     "fsdpctl stop ends the job"));
  }
  const int others = machine_.NodesWithout(node.info.incarnation);
  const int min = machine_.min_nodes();
  const bool is_missed = node.IsMember() || machine_.phase() == job::Phase::kRendezvous;
  if (!is_missed || others >= min || may_wait) {
    return absl::OkStatus();
  }
  const bool may_scale = others >= 1 && !machine_.has_binding_ranks();
  return absl::FailedPreconditionError(absl::StrCat(
      "without node ", name, " the job would have ", NodeCount(others), ", and it needs ", min,
      "; add a node first,",
      may_scale ? absl::StrCat(" lower what it needs (fsdpctl scale ", others, ":",
                               machine_.max_nodes(), "),")
                : "",
      " or give --below-min: then its workers stop, and it waits for another node, as long as "
      "its join timeout"));
}

absl::StatusOr<std::string> ControlDesk::Drain(const v1::DrainQuestion& question) {
  if (const std::string why = machine_.WhyFixed(); !why.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("no node can be drained: ", why));
  }
  ASSIGN_OR_RETURN(const job::Node* node, ChooseNode(machine_.nodes(), question.node()));
  const Incarnation incarnation = node->info.incarnation;
  const std::string name = absl::StrCat("node ", DescribeNode(*node));
  if (node->leaving) {
    return absl::StrCat(name, machine_.IsDrained(incarnation) ? " is being drained already"
                                                              : " leaves the job already");
  }
  RETURN_IF_ERROR(CheckOthers(*node, question.below_min()));
  const int others = machine_.NodesWithout(incarnation);
  const int min = machine_.min_nodes();
  const bool is_member = node->IsMember();
  const std::string generation = absl::StrCat(machine_.generation().value());
  hooks_.drain(incarnation);
  if (!is_member) {
    return absl::StrCat(name, " leaves the job");
  }
  return absl::StrCat(name, " is being drained: generation ", generation, " ends, and ",
                      others >= min
                          ? absl::StrCat("the job goes on with ", NodeCount(others))
                          : absl::StrCat("the job waits for nodes: it has ", others, " of ", min));
}

// --- How many there may be

absl::Status ControlDesk::CheckScale(int min, int max) const {
  if (min < 1 || max < min || max > kMaxNodes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a job has MIN:MAX nodes with 1 <= MIN <= MAX <= ", kMaxNodes, ", not ", min, ":", max));
  }
  if (const std::string why = machine_.WhyFixed(); !why.empty()) {
    return absl::FailedPreconditionError(absl::StrCat("the job cannot be scaled: ", why));
  }
  if (machine_.has_binding_ranks()) {
    return absl::FailedPreconditionError(
        "each node of this job was given its rank (--rdzv-backend static), which leaves no room "
        "for more or fewer; a job that can be scaled has --rdzv-backend c10d or etcd");
  }
  if (facts_.endpoint.empty()) {
    return absl::FailedPreconditionError(
        "no other node can join this job (--standalone, or one node without --rdzv-endpoint); one "
        "that can be scaled is started with --rdzv-endpoint");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ControlDesk::Scale(const v1::ScaleQuestion& question) {
  const int min = question.min_nodes();
  const int max = question.max_nodes();
  RETURN_IF_ERROR(CheckScale(min, max));
  if (min == machine_.min_nodes() && max == machine_.max_nodes()) {
    return absl::StrCat("the job has --nnodes ", Limits(min, max), " already");
  }
  const std::string follows = WhatFollows(machine_, min, max);
  const std::string shortage = DescriptorShortage(static_cast<uint64_t>(max), "nodes");
  const std::string before = Limits(machine_.min_nodes(), machine_.max_nodes());
  hooks_.scale(min, max);
  return absl::StrCat("the job has --nnodes ", Limits(min, max), " from now on, before ", before,
                      follows, shortage.empty() ? "" : absl::StrCat(". ", shortage));
}

}  // namespace fsdprun
