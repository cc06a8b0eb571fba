#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/mono_time.h"
#include "base/mutex.h"
#include "base/repeater.h"
#include "launcher/etcd/etcd_client.h"
#include "launcher/journal/holder.h"
#include "launcher/journal/journal.h"

namespace fsdprun {

/// A journal in etcd.
//
// Note [A journal in etcd]
// Below the job's key there are `holder`, which coordinator has the journal; `alive`, the same with
// a lease that the holder renews; `record`, and `turn`, which step of its writing was last. A
// coordinator may take the journal when `alive` is not there, or is of a process that has ended on
// this machine; it replaces `holder` by its own, and reads the record then. Every write is one
// transaction that expects the writer in `holder`: so a holder that was silent for longer than its
// lease goes on if nobody has replaced it, and writes nothing any more once somebody has, however
// late what it has sent arrives. The lease says only when another may try.
//
// What etcd has not answered it may carry out later than what it was asked afterwards, through
// another member. So each step of a record's writing expects the step in `turn` that was there when
// it began, and puts itself there: an older record never replaces a newer one, and a step of whose
// success nothing was heard is found there.
//
// etcd takes requests of 1.5 MiB. A record that is larger is written in parts, below `parts/a/` and
// `parts/b/` in turn, and `record` says where. What a writer that was killed has left there is
// replaced with the next such record.
class EtcdJournal : public Journal {
 public:
  /// How long a holder that is not heard of keeps others out. Much less than an agent waits for its
  /// coordinator.
  static constexpr int64_t kLeaseSeconds = 10;

  struct Options {
    /// Of everything here; without a slash at the end.
    std::string key;
    JournaledJob job;
    /// Random, for each coordinator.
    std::string holder_id;
    /// Polled by Open() alone; may be null.
    std::function<bool()> is_cancelled{};
    /// Told, for people, what Open() is waiting for; may be null.
    std::function<void(const std::string&)> notify{};
    /// Told, on any thread and perhaps more than once, that another coordinator has taken the job
    /// over; may be null.
    std::function<void(const absl::Status&)> on_taken{};
    Duration renewal_interval = std::chrono::milliseconds(2500);
    size_t part_bytes = 1u << 20;
  };

  /// Takes the journal and reads what a coordinator before this one has left. Waits for the end of
  /// the lease of one that may be gone. Errors, each one line that says what to do: ALREADY_EXISTS
  /// if another coordinator uses it, UNAVAILABLE for what etcd says, CANCELLED, those of Use().
  static absl::StatusOr<std::unique_ptr<EtcdJournal>> Open(std::unique_ptr<EtcdClient> client,
                                                           Options options);
  /// Lets go of the journal.
  ~EtcdJournal() override;

  absl::Status Write(const job::Record& record) override;
  absl::Status Confirm() override;
  bool can_be_taken() const override { return true; }
  MonoTime sure_until() const override { return MonoTime(Duration(sure_until_.load())); }
  std::string identity() const override;

 private:
  EtcdJournal(std::unique_ptr<EtcdClient> client, Options options);

  std::string Key(const char* name) const;
  std::string PartKey(char set, size_t index) const;
  std::string Where() const;
  absl::Status Acquire();
  /// True if the journal is this coordinator's; false: look again.
  absl::StatusOr<bool> TryToAcquire(HolderWatch& watch);
  absl::StatusOr<bool> Replace(const std::optional<std::string>& alive,
                               const std::optional<std::string>& holder);
  absl::Status ReadRecord();
  absl::StatusOr<std::string> JoinParts(const std::string& directory);
  absl::Status WriteParts(const std::string& text);
  /// Carries out what this coordinator may do only while it has the journal.
  absl::Status CommitAsHolder(EtcdChange change);
  /// The same, for the thread that writes: never later than what that does after it.
  absl::Status CommitInTurn(EtcdChange change);
  absl::Status PutHolderAgain(EtcdChange change);
  absl::Status Renew();
  void BeSureFrom(MonoTime asked_at);

  // Constant after construction.
  const std::unique_ptr<EtcdClient> client_;
  const Options options_;
  const Holder self_;
  const std::string self_text_;

  /// Since the clock's beginning.
  std::atomic<Duration::rep> sure_until_{0};
  /// Of the thread that writes.
  char set_ = 'a';
  bool has_parts_ = false;
  uint64_t steps_ = 0;
  /// Held while the lease is renewed, which may be on two threads.
  Mutex mu_;
  int64_t lease_ ABSL_GUARDED_BY(mu_) = 0;
  std::unique_ptr<Repeater> renewal_;
};

}  // namespace fsdprun
