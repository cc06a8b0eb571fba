#pragma once

#include <fsdp/export.h>
#include <fsdp/work.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/src/comm/issue_log.h"
#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// What a rank tells the others while it makes no progress.
struct FSDP_API SequenceReport {
  uint64_t round = 0;
  uint64_t pending = 0;  // operations that have not ended: not compared, but it shows progress
  std::string gather_lane, reduce_lane;  // IssueLog::bytes_of()

  std::string text() const;
  static SequenceReport parse(const std::string& text);
};

/// What is wrong with the operations of ranks that all wait, by their reports; "" if nothing is.
/// `stands_still`: for so long that who has issued fewer will issue no more. Pure.
FSDP_API std::string find_difference(const std::vector<SequenceReport>& reports,
                                     const std::vector<int64_t>& names, bool stands_still);

/// The operations that this rank has issued, in rounds from one agreement to the next. When they do
/// not end, because ranks have issued different ones and wait for each other on the device, no rank
/// comes to the next agreement. So a helper thread puts what has been issued into the store once
/// operations, or the host, have waited for Patience::look; as soon as all ranks have, rank 0
/// compares it, and tells the others what differs: at once those that all ranks have issued, and
/// after Patience::standstill without any progress also how many they are. It alone reads what all
/// have issued, because that is much in a large world.
///
/// Thread: any.
class FSDP_API SequenceRecorder {
 public:
  struct Patience {
    std::chrono::milliseconds look;
    std::chrono::milliseconds standstill;
    /// For an answer of the store, and so for the end of the thread, which the destructor awaits.
    std::chrono::milliseconds answer = std::chrono::seconds(20);
  };
  static Patience patience_for(std::chrono::milliseconds timeout) {
    return {timeout / 20, timeout / 2, std::min(timeout, Patience{}.answer)};
  }
  struct Group {
    int64_t rank = 0;
    int64_t size = 1;
    std::vector<int64_t> names = {};  // what errors call the ranks; empty: by their numbers
  };
  using OnDifference = std::function<void(const std::string&)>;

  /// `store`: for this use only, with Patience::answer as its timeout. `on_difference` is called by
  /// the thread, once.
  SequenceRecorder(std::shared_ptr<StoreClient> store, std::string prefix, Group group,
                   Patience patience, OnDifference on_difference);
  ~SequenceRecorder();
  SequenceRecorder(const SequenceRecorder&) = delete;
  SequenceRecorder& operator=(const SequenceRecorder&) = delete;

  /// An operation is about to be issued.
  void add(Lane lane, const shm::Descriptor& issued);
  /// It has been, and has not ended until `work` is done.
  void keep(WorkPtr work);
  /// Ends the round, of which it returns the log.
  std::shared_ptr<const IssueLog> next_round();

  /// While it lives, the host waits: for the ranks' agreement on `round`, or for the device (null).
  class Waiting {
   public:
    Waiting(SequenceRecorder& recorder, std::shared_ptr<const IssueLog> round);
    ~Waiting();
    Waiting(const Waiting&) = delete;
    Waiting& operator=(const Waiting&) = delete;

   private:
    SequenceRecorder& recorder_;
  };

 private:
  using TimePoint = std::chrono::steady_clock::time_point;
  struct Pending {
    WorkPtr work;
    TimePoint issued;
  };

  void loop();
  /// With mu_ held: forgets what has ended; whether something has waited for long.
  bool is_stuck(TimePoint now);
  SequenceReport own_report() const;  // with mu_ held
  void report(const SequenceReport& own);
  /// "" if nothing is known to differ.
  std::string compare_all();
  std::string told_by_rank_0();
  void withdraw();
  std::string key(int64_t rank) const { return prefix_ + "/waits/" + std::to_string(rank); }
  std::string key_of_difference() const { return prefix_ + "/waits/difference"; }

  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
  const Group group_;
  const Patience patience_;
  const OnDifference on_difference_;

  std::mutex mu_;
  std::condition_variable changed_;
  bool is_stopping_ = false;  // guarded by mu_, as is the rest but what is the thread's
  IssueLog log_;
  uint64_t round_ = 0;
  std::deque<Pending> pending_;
  std::optional<TimePoint> host_waits_since_;
  std::shared_ptr<const IssueLog> agreed_on_;  // what the host waits for

  // The thread's.
  std::string reported_;
  std::vector<std::string> seen_;  // of all ranks
  TimePoint same_since_;           // as long as seen_ has not changed
  bool is_told_ = false;
  std::thread thread_;
};

}  // namespace fsdp
