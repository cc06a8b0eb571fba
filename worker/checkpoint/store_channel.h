#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "fsdp_runtime/store/store_client.h"
#include "fsdp_runtime/store/store_looks.h"
#include "worker/checkpoint/channel.h"

namespace fsdprun::checkpoint {

struct StoreChannelOptions {
  std::shared_ptr<fsdp::StoreClient> store;
  /// Of this job's keys, no one else's: with the generation in it, they are this world's.
  std::string prefix;
  int64_t rank = 0;
  int64_t size = 1;
  /// For one text of another rank, which may be writing gigabytes meanwhile.
  std::chrono::milliseconds timeout = std::chrono::hours(1);
  /// How long the store may be out of reach: its process may be stopped, or the network be busy.
  std::chrono::milliseconds silence_max = fsdp::kStoreSilenceMax;
};

/// Exchanges over the job's key-value store, so that a thread of its own can do it beside training,
/// whose communicators it leaves alone. One exchange costs a round trip or two of each rank; rank 0
/// reads every other rank's text. Errors: CheckpointError naming the rank that was waited for
/// (ETIMEDOUT), or why the store is out of reach (kChannelLost). What fails on rank 0 fails on all,
/// and the rest of the series at once; but what rank 0 has answered holds there, whether the others
/// hear it or not. Before Restart() there is no series.
class StoreChannel : public Channel {
 public:
  explicit StoreChannel(StoreChannelOptions options) : options_(std::move(options)) {}

  void Restart() override;
  std::string Ask(const std::string& mine, const Answer& answer) override;
  std::string Broadcast(const std::string& mine) override;

  bool IsLost() const override { return is_lost_; }
  /// Within half a second; if the store is silent, when the call that is under way ends: 4 s, and
  /// what a large text may take (StoreClient).
  void Cancel(const CheckpointError& why) override;

 private:
  /// Does `exchange`, unless one of the series has failed.
  std::string Attempt(const std::function<std::string()>& exchange);
  void ThrowIfCancelled() const;
  /// A while, unless it is cancelled.
  void Pause();
  /// Asks the store, again if it is out of reach: all that is asked for here can be asked twice.
  template <typename Call>
  auto Persist(const Call& call);
  /// Returns when the store has it.
  void Put(const std::string& key, const std::string& value);
  std::string KeyOf(const std::string& part) const;
  std::string Await(const std::string& key, int64_t from_rank);
  /// On rank 0.
  std::string CollectAndAnswer(const std::string& mine, const Answer& answer);
  /// On the other ranks.
  std::string AwaitAnswer();
  void Fail(const CheckpointError& error);
  /// On rank 0.
  void GiveUp(const CheckpointError& error);
  void Forget(std::vector<std::string> keys);

  const StoreChannelOptions options_;
  std::atomic<bool> is_lost_{false};
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CheckpointError> cancelled_;  // guarded by mutex_
  int64_t series_ = 0;
  /// Of the exchange that is next.
  int64_t number_ = 0;
  std::optional<CheckpointError> failure_;
  /// On rank 0: keys of earlier exchanges that some rank may still read.
  std::vector<std::string> unread_;
};

}  // namespace fsdprun::checkpoint
