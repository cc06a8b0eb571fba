#include "worker/checkpoint/store_channel.h"

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "fsdp_runtime/store/store_error.h"

namespace fsdprun::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

/// How long a wait does not look whether it was cancelled.
constexpr auto kLook = std::chrono::milliseconds(250);

std::string Joined(const std::vector<std::string>& texts) {
  nlohmann::json list = nlohmann::json::array();
  for (const std::string& text : texts) {
    list.push_back(nlohmann::json::binary({text.begin(), text.end()}));
  }
  const std::vector<uint8_t> bytes = nlohmann::json::to_cbor(list);
  return {bytes.begin(), bytes.end()};
}

std::vector<std::string> Split(const std::string& joined) {
  std::vector<std::string> texts;
  for (const nlohmann::json& text : nlohmann::json::from_cbor(joined)) {
    const auto& bytes = text.get_binary();
    texts.emplace_back(bytes.begin(), bytes.end());
  }
  return texts;
}

}  // namespace

// Note [Keys of an exchange]
// Exchange n has the keys <prefix>/<n>/<rank>, which only rank 0 reads, and <prefix>/<n>/all, which
// all others read. A rank begins an exchange after it has read what it needs of those before. So
// when rank 0 has every text of a Gather, nobody reads the keys of earlier exchanges any more, and
// it removes them: the store holds those of the last few.

std::string StoreChannel::KeyOf(const std::string& part) const {
  return options_.prefix + "/" + std::to_string(number_) + "/" + part;
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
    } catch (const fsdp::StoreError& error) {
      throw CheckpointError(error.what(), ECONNRESET);
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

std::vector<std::string> StoreChannel::Gather(const std::string& mine) {
  const std::string all = KeyOf("all");
  std::vector<std::string> texts;
  try {
    if (options_.rank != 0) {
      options_.store->set(KeyOf(std::to_string(options_.rank)), mine);
      texts = Split(Await(all, 0));
    } else {
      std::vector<std::string> read = std::exchange(unread_, {});
      texts.push_back(mine);
      for (int64_t rank = 1; rank < options_.size; ++rank) {
        read.push_back(KeyOf(std::to_string(rank)));
        texts.push_back(Await(read.back(), rank));
      }
      options_.store->set(all, Joined(texts));
      unread_ = {all};
      Forget(std::move(read));
    }
  } catch (const fsdp::StoreError& error) {
    throw CheckpointError(error.what(), ECONNRESET);
  }
  ++number_;
  return texts;
}

std::string StoreChannel::Broadcast(const std::string& mine) {
  const std::string all = KeyOf("all");
  std::string text = mine;
  if (options_.rank != 0) {
    text = Await(all, 0);
  } else {
    try {
      options_.store->set(all, mine);
    } catch (const fsdp::StoreError& error) {
      throw CheckpointError(error.what(), ECONNRESET);
    }
    unread_.push_back(all);
  }
  ++number_;
  return text;
}

}  // namespace fsdprun::checkpoint
