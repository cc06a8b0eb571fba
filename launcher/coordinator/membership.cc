#include "launcher/coordinator/membership.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace fsdprun {

using job::Node;
using job::NodeState;

namespace {

constexpr size_t kNamesMax = 8;

}  // namespace

// --- Joining

std::string Membership::Refusal(const NodeInfo& info) const {
  if (info.local_world_size < 1) {
    return "node " + info.name + " offers " + std::to_string(info.local_world_size) +
           " workers; at least 1 is needed";
  }
  if (!info.requested_node_rank || !spec_.node_ranks_bind) {
    return "";
  }
  const int rank = *info.requested_node_rank;
  if (rank < 0 || rank >= spec_.max_nodes) {
    return "node rank " + std::to_string(rank) + " is outside 0.." +
           std::to_string(spec_.max_nodes - 1) + "; check --node-rank and --nnodes";
  }
  const Node* holder = HolderOf(rank);
  if (holder != nullptr && holder->connected && !holder->suspect) {
    return "node rank " + std::to_string(rank) + " is taken by node " + holder->info.name + " (" +
           holder->info.address + "); give every node its own --node-rank";
  }
  return "";
}

const Node* Membership::HolderOf(int requested_node_rank) const {
  for (const Node& node : nodes_) {
    if (node.info.requested_node_rank == requested_node_rank && !node.leaving) {
      return &node;
    }
  }
  return nullptr;
}

/// Nobody was promised the rank, and no node without a wish of its own holds it.
bool Membership::IsRankFree(int rank) const {
  for (const Node& node : nodes_) {
    if (!node.leaving && node.info.requested_node_rank.value_or(node.group_rank) == rank) {
      return false;
    }
  }
  return true;
}

/// Empty, or what is to be said about it.
std::string Membership::DropImpossibleRank(NodeInfo* info) const {
  if (spec_.node_ranks_bind || !info->requested_node_rank) {
    return "";
  }
  const int rank = *info->requested_node_rank;
  const bool is_in_range = rank >= 0 && rank < spec_.max_nodes;
  if (is_in_range && IsRankFree(rank)) {
    return "";
  }
  info->requested_node_rank.reset();
  return "node " + info->name + " asks for node rank " + std::to_string(rank) + ", which " +
         (is_in_range ? "another node has" : "is not below --nnodes") +
         "; it gets another one (warned once)";
}

Membership::Admission Membership::Admit(NodeInfo info, Generation held, MonoTime now) {
  Admission admission;
  if (std::string warning = DropImpossibleRank(&info);
      !warning.empty() && !std::exchange(has_warned_of_rank_, true)) {
    admission.warning = std::move(warning);
  }
  const bool takes_rank = spec_.node_ranks_bind && info.requested_node_rank.has_value();
  const Node* holder = takes_rank ? HolderOf(*info.requested_node_rank) : nullptr;
  admission.replaced = holder != nullptr ? holder->info.incarnation : Incarnation{};
  admission.node = &Insert(std::move(info), held, now);
  return admission;
}

Node& Membership::AdmitToLastWords(const NodeInfo& info, MonoTime now) {
  return Insert(info, Generation{}, now);
}

Node& Membership::Insert(NodeInfo info, Generation held, MonoTime now) {
  Node node;
  node.info = std::move(info);
  node.state = held != Generation{} ? NodeState::kCleaning : NodeState::kSpare;
  node.held = held;
  node.sequence = ++admissions_;
  Node& inserted = nodes_.Insert(std::move(node));
  leases_.Begin(inserted, now);
  return inserted;
}

// --- Taking a job over

void Membership::Restore(const job::NodeRecord& record, NodeState state, MonoTime now) {
  Node node;
  node.info = record.info;
  node.state = state;
  node.group_rank = record.group_rank;
  node.leaving = record.leaving;
  node.sequence = record.sequence;
  admissions_ = std::max(admissions_, record.sequence);
  leases_.Expect(nodes_.Insert(std::move(node)), now);
}

std::vector<job::NodeRecord> Membership::Records(bool all) const {
  std::vector<job::NodeRecord> records;
  for (const Node& node : nodes_) {
    if (all || node.group_rank >= 0) {
      records.push_back({node.info, node.group_rank, node.leaving, node.sequence});
    }
  }
  return records;
}

// --- The next world

std::vector<Incarnation> Membership::Eligible() const {
  std::vector<Incarnation> eligible;
  for (const Node& node : nodes_) {
    if (node.state == NodeState::kSpare && node.connected && !node.suspect && !node.leaving) {
      eligible.push_back(node.info.incarnation);
    }
  }
  return eligible;
}

bool Membership::AwaitsLeaseDecision() const {
  for (const Node& node : nodes_) {
    if ((node.suspect || !node.connected) && !node.leaving) {
      return true;
    }
  }
  return false;
}

std::vector<Candidate> Membership::Choose(std::vector<Incarnation> eligible) const {
  const auto precedence = [this](Incarnation i) {
    const Node& node = nodes_.At(i);
    return std::tuple(node.group_rank < 0, !node.info.requested_node_rank, node.sequence);
  };
  std::sort(eligible.begin(), eligible.end(),
            [&](Incarnation a, Incarnation b) { return precedence(a) < precedence(b); });
  eligible.resize(std::min(eligible.size(), static_cast<size_t>(spec_.max_nodes)));
  std::vector<Candidate> chosen;
  chosen.reserve(eligible.size());
  for (const Incarnation i : eligible) {
    chosen.push_back({nodes_.At(i).info, nodes_.At(i).group_rank});
  }
  return chosen;
}

void Membership::MakeMember(Incarnation incarnation, int group_rank) {
  Node& node = nodes_.At(incarnation);
  node.state = NodeState::kMember;
  node.group_rank = group_rank;
}

void Membership::EndWorld() {
  for (Node& node : nodes_) {
    node.group_rank = node.IsMember() ? node.group_rank : -1;
    node.state = node.IsMember() ? NodeState::kSpare : node.state;
  }
}

std::string Membership::Missing(const std::vector<Incarnation>& eligible) const {
  const size_t count = eligible.size();
  std::string text = std::to_string(count) + " of " + std::to_string(spec_.min_nodes) + " joined";
  for (size_t i = 0; i < std::min(count, kNamesMax); ++i) {
    text += (i == 0 ? " (" : ", ") + nodes_.At(eligible[i]).info.name;
  }
  if (count > 0) {
    text += count > kNamesMax ? ", ...)" : ")";
  }
  if (const std::string ranks = MissingRanks(eligible); !ranks.empty()) {
    text += "; missing node rank " + ranks;
  }
  const size_t shown = std::min(lost_.size(), kNamesMax);
  for (size_t i = lost_.size() - shown; i < lost_.size(); ++i) {
    text += (i == lost_.size() - shown ? "; gone: " : ", ") + lost_[i];
  }
  return text;
}

/// Where every node has been given its rank, those that nobody has; otherwise nothing.
std::string Membership::MissingRanks(const std::vector<Incarnation>& eligible) const {
  std::vector<bool> taken(spec_.max_nodes, false);
  for (const Incarnation i : eligible) {
    const std::optional<int>& rank = nodes_.At(i).info.requested_node_rank;
    if (!rank || !spec_.node_ranks_bind) {
      return "";
    }
    taken[*rank] = true;
  }
  std::string ranks;
  for (int r = 0; !eligible.empty() && r < spec_.min_nodes; ++r) {
    ranks += taken[r] ? "" : (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

std::vector<Incarnation> Membership::Strangers() const {
  std::vector<Incarnation> strangers;
  for (const Node& node : nodes_) {
    if (node.state == NodeState::kSpare && node.group_rank < 0 && !node.leaving) {
      strangers.push_back(node.info.incarnation);
    }
  }
  return strangers;
}

// --- Leaving

Node Membership::Lose(Incarnation incarnation, const std::string& what) {
  Node node = nodes_.At(incarnation);
  nodes_.Erase(incarnation);
  lost_.push_back(node.info.name + " (" + what + ")");
  return node;
}

}  // namespace fsdprun
