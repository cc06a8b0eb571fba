#pragma once

// What the coordinator knows about the agents.

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "base/mono_time.h"
#include "proto/cluster/types.h"

namespace fsdprun {

namespace job {

enum class NodeState {
  kSpare,     // admitted, holds no generation; may become a member
  kCleaning,  // rejoined while holding an older generation, which is being stopped
  kMember,    // of the present world, see World
  kReleased,
};

/// What the coordinator knows about one agent. The fields that each heartbeat and each lease scan
/// read come first and fit one cache line: with thousands of nodes those reads dominate the cost of
/// a step.
struct alignas(64) Node {
  NodeState state = NodeState::kSpare;
  bool connected = true;
  bool suspect = false;
  /// An operator ends this agent, by a signal or by draining its node; it is never a member again.
  bool leaving = false;
  /// Known from a coordinator before this one, and not heard of since.
  bool is_expected = false;
  /// A member only where there are too few others, see Quarantine.
  bool is_left_out = false;
  /// How Membership has counted it.
  bool is_counted_eligible = false;
  bool is_counted_undecided = false;
  bool is_counted_wanted = false;
  int counted_rank = -1;
  MonoTime last_heard{};
  /// Since when its lease runs, on the clock of Leases.
  MonoTime lease_from{};
  MonoTime stream_lost_at{};
  /// For kCleaning: the generation being stopped.
  Generation held;
  /// Order of admission.
  uint64_t sequence = 0;
  /// In the present world; of others in the last world, or -1 if they had no part in it.
  int group_rank = -1;
  NodeInfo info;

  bool IsMember() const { return state == NodeState::kMember; }
};

}  // namespace job

/// The admitted nodes. Iterated in order of incarnation at the speed of an array, found by
/// incarnation with one hash lookup. A Node's address is stable until it is erased; insertion and
/// erasure move O(nodes) pointers and invalidate iterators.
class NodeTable {
 public:
  template <class T>
  class Iterator {
   public:
    explicit Iterator(const std::unique_ptr<job::Node>* at) : at_(at) {}
    T& operator*() const { return **at_; }
    Iterator& operator++() {
      ++at_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return at_ != other.at_; }

   private:
    const std::unique_ptr<job::Node>* at_;
  };

  size_t size() const { return ordered_.size(); }
  bool empty() const { return ordered_.empty(); }
  Iterator<job::Node> begin() { return Iterator<job::Node>(ordered_.data()); }
  Iterator<job::Node> end() { return Iterator<job::Node>(ordered_.data() + size()); }
  Iterator<const job::Node> begin() const { return Iterator<const job::Node>(ordered_.data()); }
  Iterator<const job::Node> end() const {
    return Iterator<const job::Node>(ordered_.data() + size());
  }

  /// nullptr if there is no such node.
  job::Node* Find(Incarnation incarnation) const {
    const auto it = index_.find(incarnation.value());
    return it == index_.end() ? nullptr : it->second;
  }
  /// The node must be there.
  job::Node& At(Incarnation incarnation) const;
  /// `node.info.incarnation` must not be there yet.
  job::Node& Insert(job::Node node);
  /// Does nothing if there is no such node.
  void Erase(Incarnation incarnation);
  void Clear();
  /// Empty, or what is wrong between order and index.
  std::string_view CheckInvariants() const;

 private:
  using Order = std::vector<std::unique_ptr<job::Node>>;
  Order::iterator LowerBound(Incarnation incarnation);

  Order ordered_;
  // Only for lookups, never iterated.
  absl::flat_hash_map<uint64_t, job::Node*> index_;
};

}  // namespace fsdprun
