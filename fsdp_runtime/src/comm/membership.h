#pragma once

#include <fsdp/export.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fsdp_runtime/src/comm/peer_links.h"

namespace fsdp {

/// Why groups cannot be used any more.
struct GroupFailure {
  std::string reason;
  std::optional<int64_t> lost_rank;  // of the world, that died or left; unset: nobody is gone
};

/// What a group holds of Membership.
class FSDP_API Interruptible {
 public:
  virtual ~Interruptible() = default;
  /// Ends the group's operations of this rank, running and to come. Any thread; blocks for some
  /// seconds at most.
  virtual void interrupt(const GroupFailure& failure) = 0;
};

/// Note [One failure of all groups]
/// Groups of one world fail together. A rank that waits in one group for a peer that has failed in
/// another would wait for its timeout, or see the peer leave, and blame it. So whoever learns of a
/// failure first tells all ranks and only then its own caller, and whoever is told does the same: a
/// rank that leaves because another one has died has said so on each connection before that
/// connection ends. One that ends without a word is that of a rank that died.
///
/// The ranks of a world as this one knows them, shared by the world's group and by the parts that
/// split() makes of it. Thread: any.
class FSDP_API Membership : private PeerLinks::Listener {
 public:
  explicit Membership(int64_t rank) : rank_(rank) {}
  /// Takes leave of the peers.
  ~Membership() override;
  Membership(const Membership&) = delete;
  Membership& operator=(const Membership&) = delete;

  /// For worlds whose ranks do not see each other's processes. Once, before there are groups.
  void connect(std::unique_ptr<PeerLinks> links);

  /// Interrupts `group` when there is a failure, at once if there has been one.
  void add(Interruptible& group);
  /// `name`: of the group, which peers may still wait in.
  void remove(Interruptible& group, const std::string& name);

  /// Ends all groups. The first failure stays: returns it once all peers have been told of it and
  /// all groups have been interrupted.
  GroupFailure revoke(const GroupFailure& failure);
  /// The same for what may be the effect of a failure that another rank tells of: its word has
  /// kWordMax to arrive.
  GroupFailure revoke_unless_told(const GroupFailure& failure);
  std::optional<GroupFailure> failure() const;
  /// Ranks of the world that have died or taken leave, as far as their links have told.
  std::set<int64_t> gone() const;

  /// Why a connection of the group `name`, with `peer` if that is known, has ended: what has been
  /// heard, or will be within kWordMax, of that. No rank is lost if that one's link stands.
  GroupFailure explain_loss(std::optional<int64_t> peer, const std::string& name);
  static constexpr std::chrono::seconds kWordMax{5};

  /// Whether one of `ranks`, by their numbers in the world (empty: one of all), has left the group
  /// `name` at least `ago` before: it takes part in no operation any more.
  std::optional<GroupFailure> departure(const std::string& name, const std::vector<int64_t>& ranks,
                                        std::chrono::milliseconds ago) const;

 private:
  void on_message(int64_t peer, const std::string& message) override;
  void on_closed(int64_t peer) override;

  using TimePoint = std::chrono::steady_clock::time_point;

  const int64_t rank_;
  std::mutex revoke_mu_;                // of a revocation as a whole; taken before mu_
  std::vector<Interruptible*> groups_;  // guarded by revoke_mu_
  mutable std::mutex mu_;
  std::condition_variable has_word_;
  std::optional<GroupFailure> failure_;                        // guarded by mu_, as is the rest
  std::map<std::pair<std::string, int64_t>, TimePoint> left_;  // of which group which rank, when
  std::map<int64_t, TimePoint> goodbyes_;                      // ranks that have left all groups
  std::set<int64_t> closed_;                                   // whose link has ended
  // Constant once there are groups. The last member: its thread uses the others.
  std::unique_ptr<PeerLinks> links_;
};

/// A rank's place in a group, and what it shares with other groups of the same world.
struct GroupPlace {
  int64_t rank = 0;
  int64_t size = 1;
  std::chrono::milliseconds timeout{0};
  std::string name = {};                  // the same on all its ranks, and of no other group
  std::vector<int64_t> world_ranks = {};  // by rank of this group; empty: it is the world
  std::shared_ptr<Membership> membership = {};

  int64_t world_rank(int64_t of) const {
    return world_ranks.empty() ? of : world_ranks[static_cast<size_t>(of)];
  }
  std::vector<int64_t> world_ranks_of(const std::vector<int64_t>& ranks) const {
    std::vector<int64_t> of_world;
    of_world.reserve(ranks.size());
    for (const int64_t each : ranks) {
      of_world.push_back(world_rank(each));
    }
    return of_world;
  }
};

}  // namespace fsdp
