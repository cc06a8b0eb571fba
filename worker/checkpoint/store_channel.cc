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

std::string StoreChannel::Await(const std::string& key, int64_t from_rank) {
  const Clock::time_point deadline = Clock::now() + options_.timeout;
  const std::string who = "rank " + std::to_string(from_rank);
  while (true) {
    if (is_cancelled_) {
      throw CheckpointError("did not wait for " + who + " any longer", ECANCELED);
    }
    const Clock::time_point now = Clock::now();
    if (now >= deadline) {
      const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(options_.timeout);
      throw CheckpointError(who + " has not told within " + std::to_string(seconds.count()) +
                                " s how its part of the save has ended; is its file system hung?",
                            ETIMEDOUT);
    }
    try {
      return options_.store->get(key, std::min<Clock::time_point>(deadline, now + kLook));
    } catch (const fsdp::StoreTimeout&) {
      // Not there yet.
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
  try {
    options_.store->set(KeyOf("answer"),
                        kGivenUp + std::to_string(error.error_number()) + " " + error.what());
  } catch (const fsdp::StoreError&) {
    // Then the others cannot read it either.
  }
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
    failure_ = CheckpointError(error.what(), kChannelLost);
  } catch (const CheckpointError& error) {
    failure_ = error;
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
  options_.store->set(unread_.front(), kThere + answered);
  Forget(std::move(read));
  return answered;
}

std::string StoreChannel::Ask(const std::string& mine, const Answer& answer) {
  return Attempt([&] {
    if (options_.rank == 0) {
      return CollectAndAnswer(mine, answer);
    }
    options_.store->set(KeyOf(std::to_string(options_.rank)), mine);
    return AwaitAnswer();
  });
}

std::string StoreChannel::Broadcast(const std::string& mine) {
  return Attempt([&] {
    if (options_.rank != 0) {
      return AwaitAnswer();
    }
    unread_.push_back(KeyOf("answer"));
    options_.store->set(unread_.back(), kThere + mine);
    return mine;
  });
}

}  // namespace fsdprun::checkpoint
