#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "agent/process/keeper_protocol.h"

namespace fsdprun::keeper {

/// What a keeper tells an agent that attaches to it, as the last one knew it: see Note [A keeper
/// that waits for its agent]. Bounded by the number of slots. Standard library only; pure.
class LifeRecord {
 public:
  /// A worker of this life is ordered; what is known of an earlier life is forgotten. False if the
  /// slot has had this life.
  bool Begin(int slot, uint64_t life);
  void Memo(std::string memo) { memo_ = std::move(memo); }
  void Shown(const ShownCommand& shown);
  /// To be told of every report to the agent.
  void Note(const Report& report);

  /// The frames for the next agent. `output`: frames that the last one may not have got; of them,
  /// those are repeated that cannot be told again.
  std::string Tell(int32_t keeper_pid, std::string_view output) const;

 private:
  using Key = std::pair<int, Stream>;

  void ForgetEnd();

  uint64_t life_ = 0;
  std::string memo_;
  std::set<int> slots_;
  std::map<Key, uint64_t> sizes_;
  std::map<Key, uint64_t> shown_;
  /// In the order in which they were made.
  std::vector<Report> reports_;
};

}  // namespace fsdprun::keeper
