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
  const auto holders = holders_.find(requested_node_rank);
  if (holders == holders_.end()) {
    return nullptr;
  }
  for (const Incarnation incarnation : holders->second) {
    const Node& node = nodes_.At(incarnation);
    if (node.info.requested_node_rank == requested_node_rank) {
      return &node;
    }
  }
  return nullptr;
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
  Recount(inserted);
  return inserted;
}

// --- Counting, see Note [Counted, not searched]

bool Membership::MayBeMember(const Node& node) const {
  return node.state == NodeState::kSpare && node.connected && !node.leaving &&
         (!node.suspect || !leases_.has_job_run());
}

bool Membership::IsUndecided(const Node& node) const {
  return !node.leaving && !node.is_left_out &&
         (!node.connected || (node.suspect && leases_.has_job_run()));
}

void Membership::Recount(Node& node) {
  const bool is_eligible = MayBeMember(node);
  const bool is_wanted = IsWanted(node);
  const bool is_undecided = IsUndecided(node);
  wanted_ += static_cast<int>(is_wanted) - static_cast<int>(node.is_counted_wanted);
  eligible_ += static_cast<int>(is_eligible) - static_cast<int>(node.is_counted_eligible);
  undecided_ += static_cast<int>(is_undecided) - static_cast<int>(node.is_counted_undecided);
  node.is_counted_eligible = is_eligible;
  node.is_counted_wanted = is_wanted;
  node.is_counted_undecided = is_undecided;
  CountRank(node, node.leaving ? -1 : node.info.requested_node_rank.value_or(node.group_rank));
}

void Membership::CountRank(Node& node, int rank) {
  if (rank == node.counted_rank) {
    return;
  }
  if (node.counted_rank >= 0) {
    const auto holders = holders_.find(node.counted_rank);
    std::erase(holders->second, node.info.incarnation);
    if (holders->second.empty()) {
      holders_.erase(holders);
    }
  }
  if (rank >= 0) {
    std::vector<Incarnation>& holders = holders_[rank];
    holders.insert(std::upper_bound(holders.begin(), holders.end(), node.info.incarnation),
                   node.info.incarnation);
  }
  node.counted_rank = rank;
}

void Membership::CountOut(Node& node) {
  eligible_ -= node.is_counted_eligible ? 1 : 0;
  wanted_ -= node.is_counted_wanted ? 1 : 0;
  undecided_ -= node.is_counted_undecided ? 1 : 0;
  node.is_counted_eligible = node.is_counted_wanted = node.is_counted_undecided = false;
  CountRank(node, -1);
}

std::string Membership::CheckInvariants() const {
  if (const std::string_view broken = nodes_.CheckInvariants(); !broken.empty()) {
    return std::string(broken);
  }
  int eligible = 0;
  int wanted = 0;
  int undecided = 0;
  for (const Node& node : nodes_) {
    eligible += MayBeMember(node) ? 1 : 0;
    wanted += IsWanted(node) ? 1 : 0;
    undecided += IsUndecided(node) ? 1 : 0;
    const int rank = node.leaving ? -1 : node.info.requested_node_rank.value_or(node.group_rank);
    if (rank != node.counted_rank) {
      return "node " + node.info.name + " is counted with another rank than it has";
    }
  }
  if (eligible != eligible_ || wanted != wanted_ || undecided != undecided_) {
    return std::to_string(eligible) + " nodes may be members, " + std::to_string(wanted) +
           " are wanted and " + std::to_string(undecided) + " are undecided, but " +
           std::to_string(eligible_) + ", " + std::to_string(wanted_) + " and " +
           std::to_string(undecided_) + " were counted";
  }
  return "";
}

void Membership::ExpectNoSuccessor(const std::string& node_name, MonoTime now) {
  for (Node& node : nodes_) {
    if (node.info.name == node_name) {
      leases_.ExpectNoSuccessor(node, now);
    }
  }
}

Leases::Findings Membership::ScanLeases(MonoTime now) {
  Leases::Findings findings = leases_.Scan(nodes_, now);
  for (const Incarnation suspect : findings.suspects) {
    Recount(nodes_.At(suspect));
  }
  return findings;
}

void Membership::JobRuns(MonoTime now) {
  if (leases_.has_job_run()) {
    return;
  }
  leases_.JobRuns(now);
  for (Node& node : nodes_) {
    Recount(node);
  }
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
  Node& inserted = nodes_.Insert(std::move(node));
  leases_.Expect(inserted, now);
  Recount(inserted);
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
  eligible.reserve(static_cast<size_t>(eligible_));
  for (const Node& node : nodes_) {
    if (node.is_counted_eligible) {
      eligible.push_back(node.info.incarnation);
    }
  }
  return eligible;
}

std::vector<Incarnation> Membership::Wanted() const {
  std::vector<Incarnation> wanted = Eligible();
  std::erase_if(wanted, [this](Incarnation i) { return nodes_.At(i).is_left_out; });
  return wanted;
}

int Membership::Others(Incarnation leaver) const {
  int others = 0;
  for (const Node& node : nodes_) {
    others += !node.leaving && node.info.incarnation != leaver ? 1 : 0;
  }
  return others;
}

std::vector<Candidate> Membership::Choose(std::vector<Incarnation> eligible) const {
  const auto precedence = [this](Incarnation i) {
    const Node& node = nodes_.At(i);
    return std::tuple(node.is_left_out, node.group_rank < 0, !node.info.requested_node_rank,
                      node.sequence);
  };
  std::sort(eligible.begin(), eligible.end(),
            [&](Incarnation a, Incarnation b) { return precedence(a) < precedence(b); });
  const auto wanted =
      static_cast<size_t>(std::count_if(eligible.begin(), eligible.end(), [this](Incarnation i) {
        return !nodes_.At(i).is_left_out;
      }));
  const size_t usable = std::max(wanted, static_cast<size_t>(spec_.min_nodes));
  eligible.resize(std::min({eligible.size(), usable, static_cast<size_t>(spec_.max_nodes)}));
  std::vector<Candidate> chosen;
  chosen.reserve(eligible.size());
  for (const Incarnation i : eligible) {
    chosen.push_back({nodes_.At(i).info, nodes_.At(i).group_rank});
  }
  return chosen;
}

void Membership::MakeMember(Incarnation incarnation, int group_rank) {
  Node& node = nodes_.At(incarnation);
  node.group_rank = group_rank;
  SetState(node, NodeState::kMember);
}

void Membership::EndWorld() {
  for (Node& node : nodes_) {
    node.group_rank = node.IsMember() ? node.group_rank : -1;
    node.state = node.IsMember() ? NodeState::kSpare : node.state;
    Recount(node);
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
  for (size_t i = 0; i < lost_.size(); ++i) {
    text += (i == 0 ? "; gone: " : ", ") + lost_[i];
  }
  return text;
}

/// Where every node has been given its rank, the first of those that nobody has; otherwise nothing.
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
  size_t shown = 0;
  for (int r = 0; !eligible.empty() && r < spec_.min_nodes && shown <= kNamesMax; ++r) {
    if (!taken[r]) {
      ranks += (shown == 0 ? "" : ", ") + (shown == kNamesMax ? "..." : std::to_string(r));
      ++shown;
    }
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
  Dismiss(incarnation);
  lost_.push_back(node.info.name + " (" + what + ")");
  if (lost_.size() > kNamesMax) {
    lost_.pop_front();
  }
  return node;
}

void Membership::Dismiss(Incarnation incarnation) {
  if (Node* node = nodes_.Find(incarnation)) {
    CountOut(*node);
    nodes_.Erase(incarnation);
  }
}

void Membership::DismissAll() {
  nodes_.Clear();
  holders_.clear();
  eligible_ = wanted_ = undecided_ = 0;
}

}  // namespace fsdprun
