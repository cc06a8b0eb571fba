#include "worker/checkpoint/store_channel.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "fsdp_runtime/store/store_error.h"

namespace fsdprun::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a wait does not look whether it was cancelled.
constexpr auto kLook = std::chrono::milliseconds(250);

// What follows: the answer; or an error number and why rank 0 has given up.
constexpr char kThere = 'K';
constexpr char kGivenUp = 'E';

}  // namespace

// Note [Keys of an exchange]
// Exchange n of series s has the keys <prefix>/<s>/<n>/<rank>, which only rank 0 reads, and
// <prefix>/<s>/<n>/answer, which all others read. A rank begins an exchange after it has read what
// it needs of those before. So when rank 0 has every text of an exchange, nobody reads the keys of
// earlier ones any more, and it removes them: the store holds those of the last few.

void StoreChannel::Restart() {
  ++series_;
  number_ = 0;
  failure_.reset();
}

std::string StoreChannel::KeyOf(const std::string& part) const {
  return options_.prefix + "/" + std::to_string(series_) + "/" + std::to_string(number_) + "/" +
         part;
}

void StoreChannel::Cancel(const CheckpointError& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  cancelled_ = cancelled_.value_or(why);
  changed_.notify_all();
}

void StoreChannel::ThrowIfCancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (cancelled_) {
    throw CheckpointError(*cancelled_);
  }
}

void StoreChannel::Pause() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, std::min<Clock::duration>(kLook, options_.silence_max),
                    [this] { return cancelled_.has_value(); });
}

template <typename Call>
auto StoreChannel::Persist(const Call& call) {
  const Clock::time_point until = Clock::now() + options_.silence_max;
  while (true) {
    ThrowIfCancelled();
    try {
      return call();
    } catch (const fsdp::StoreError&) {
      if (Clock::now() >= until) {
        throw;
      }
    }
    Pause();
  }
}

void StoreChannel::Put(const std::string& key, const std::string& value) {
  Persist([&] { options_.store->set_acknowledged(key, value); });
}

std::string StoreChannel::Await(const std::string& key, int64_t from_rank) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  while (true) {
    const std::optional<std::string> text = Persist([&]() -> std::optional<std::string> {
      try {
        return options_.store->get(key,
                                   std::min<Clock::time_point>(deadline, Clock::now() + kLook));
      } catch (const fsdp::StoreTimeout&) {
        return std::nullopt;  // not there yet
      }
    });
    if (text) {
      return *text;
    }
    if (Clock::now() >= deadline) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.timeout);
      throw CheckpointError("rank " + std::to_string(from_rank) + " has not told within " +
                                std::to_string(seconds.count()) +
                                " s how its part of the save has ended; is its file system hung?",
                            ETIMEDOUT);
    }
  }
}

void StoreChannel::Forget(std::vector<std::string> keys) {
  try {
    options_.store->delete_keys(keys);
  } catch (const fsdp::StoreError&) {
    // They cost a little room. Whether the store is gone, the next exchange will tell.
  }
}

void StoreChannel::GiveUp(const CheckpointError& error) {
  const std::string key = KeyOf("answer");
  const std::string text =
      kGivenUp + std::to_string(error.error_number()) + " " + std::string(error.what());
  try {
    if (is_lost_) {
      options_.store->set(key, text);
    } else {
      Put(key, text);  // or the others would wait for their whole timeout
    }
  } catch (const fsdp::StoreError&) {
    // Then the others cannot read it either.
  } catch (const CheckpointError&) {
    // Cancelled, as the others are.
  }
}

void StoreChannel::Fail(const CheckpointError& error) {
  failure_ = error;
  is_lost_ = error.error_number() == kChannelLost;
}

std::string StoreChannel::Attempt(const std::function<std::string()>& exchange) {
  if (failure_) {
    throw CheckpointError(*failure_);
  }
  try {
    std::string text = exchange();
    ++number_;
    return text;
  } catch (const fsdp::StoreError& error) {
    Fail(CheckpointError(error.what(), kChannelLost));
  } catch (const CheckpointError& error) {
    Fail(error);
  }
  if (options_.rank == 0) {
    GiveUp(*failure_);
  }
  throw CheckpointError(*failure_);
}

std::string StoreChannel::AwaitAnswer() {
  std::string text = Await(KeyOf("answer"), 0);
  if (text.starts_with(kThere)) {
    return text.substr(1);
  }
  const size_t space = text.find(' ');
  throw CheckpointError(text.substr(space + 1), std::stoi(text.substr(1, space - 1)));
}

std::string StoreChannel::CollectAndAnswer(const std::string& mine, const Answer& answer) {
  std::vector<std::string> read = std::exchange(unread_, {});
  std::vector<std::string> texts = {mine};
  for (int64_t rank = 1; rank < options_.size; ++rank) {
    read.push_back(KeyOf(std::to_string(rank)));
    texts.push_back(Await(read.back(), rank));
  }
  std::string answered = answer(texts);
  unread_ = {KeyOf("answer")};
  try {
    Put(unread_.front(), kThere + answered);
    Forget(std::move(read));
  } catch (const fsdp::StoreError& error) {
    Fail(CheckpointError(error.what(), kChannelLost));  // what follows in the series
  } catch (const CheckpointError& error) {
    Fail(error);
  }
  return answered;
}

std::string StoreChannel::Ask(const std::string& mine, const Answer& answer) {
  return Attempt([&] {
    if (options_.rank == 0) {
      return CollectAndAnswer(mine, answer);
    }
    Put(KeyOf(std::to_string(options_.rank)), mine);
    return AwaitAnswer();
  });
}

std::string StoreChannel::Broadcast(const std::string& mine) {
  return Attempt([&] {
    if (options_.rank != 0) {
      return AwaitAnswer();
    }
    unread_.push_back(KeyOf("answer"));
    Put(unread_.back(), kThere + mine);
    return mine;
  });
}

}  // namespace fsdprun::checkpoint
