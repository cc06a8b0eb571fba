#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fsdp_runtime/src/comm/issue_log.h"
#include "fsdp_runtime/src/comm/sequence_recorder.h"
#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Rounds in which the ranks of a group compare, through the store, what they have issued and a
/// value: rank 0 reads what all have put there and tells the others. Waits are at most the store's
/// timeout, and twice that for ranks that come after rank 0 has begun to wait. Thread: one at a
/// time. Errors: StoreError, after one attempt on a new connection.
class StoreRounds {
 public:
  /// Called while this rank waits for others. May throw: they will not come. `store_answers`: or it
  /// may be that they have come, and nobody says so.
  using LookUp = std::function<void(bool store_answers)>;
  using Group = SequenceRecorder::Group;

  /// As rank 0 has written it.
  struct Verdict {
    std::string text;
    bool is_unanimous() const;
    bool is_out_of_step() const;  // they have issued different operations
    bool is_incomplete() const;   // ranks have not come
  };

  StoreRounds(std::shared_ptr<StoreClient> store, std::string prefix, Group group, LookUp look_up);

  /// Begins the next round: puts this rank's part into the store.
  void begin(const IssueLog& log, uint64_t value);
  uint64_t number() const { return number_; }
  /// Of the round that has begun; once.
  Verdict verdict();
  /// The first operation that differs. All ranks call it with what they have issued in the round.
  std::string explanation(const IssueLog& own);
  /// Says which ranks have not come.
  std::string incomplete(const Verdict& verdict, const IssueLog& own) const;

  /// What errors call a rank.
  int64_t called(int64_t rank) const {
    return group_.names.empty() ? rank : group_.names[static_cast<size_t>(rank)];
  }

 private:
  using TimePoint = StoreClient::TimePoint;

  std::string key(const std::string& name, int64_t rank, uint64_t round) const {
    return prefix_ + "/" + name + "/" + std::to_string(round) + "/" + std::to_string(rank);
  }
  std::string key(const std::string& name, int64_t rank) const { return key(name, rank, number_); }
  std::vector<std::string> read_all(const std::string& name);
  std::string read(const std::string& name, TimePoint deadline);
  /// Asks for each rank once and waits for none.
  std::string ranks_without(const std::string& name);
  void put_value() { store_->set(key("value", group_.rank), value_); }
  /// For the other ranks.
  void publish(const std::string& name, const std::string& text);
  template <typename PutAgain>
  std::string decide(const PutAgain& put_again);
  template <typename PutAgain>
  std::string hear(const PutAgain& put_again);
  void forget_past_rounds();

  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
  const Group group_;
  const LookUp look_up_;
  uint64_t number_ = 0;
  uint64_t first_kept_ = 1;  // round whose keys are still in the store
  std::string value_;        // of this round
};

}  // namespace fsdp
