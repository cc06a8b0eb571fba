#include "fsdp_runtime/src/comm/store_rounds.h"

#include <algorithm>
#include <utility>

#include "fsdp_runtime/store/store_looks.h"

namespace fsdp {
namespace {

constexpr char kUnanimous[] = "unanimous";
constexpr char kDivided[] = "divided";
constexpr char kOutOfStep[] = "out of step";
constexpr char kMissing[] = "missing: ";

/// Rounds whose keys are removed together, because that is a round trip on the training's path.
constexpr uint64_t kRoundsKept = 64;

/// `request`, which must be idempotent, and once more on a fresh connection if the first was lost.
template <typename Request>
auto ask(const Request& request) {
  try {
    return request();
  } catch (const StoreTimeout&) {
    throw;
  } catch (const StoreError&) {
    return request();
  }
}

std::string comparison(const std::vector<std::string>& values) {
  const auto is_equal = [&values](size_t length) {
    return std::all_of(values.begin(), values.end(), [&](const std::string& other) {
      return other.substr(0, length) == values.front().substr(0, length);
    });
  };
  return is_equal(std::string::npos)              ? kUnanimous
         : is_equal(values.front().find(' ') + 1) ? kDivided
                                                  : kOutOfStep;
}

}  // namespace

bool StoreRounds::Verdict::is_unanimous() const { return text == kUnanimous; }
bool StoreRounds::Verdict::is_out_of_step() const { return text == kOutOfStep; }
bool StoreRounds::Verdict::is_incomplete() const { return text.rfind(kMissing, 0) == 0; }

StoreRounds::StoreRounds(std::shared_ptr<StoreClient> store, std::string prefix, Group group,
                         LookUp look_up)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      group_(std::move(group)),
      look_up_(std::move(look_up)) {}

void StoreRounds::begin(const IssueLog& log, uint64_t value) {
  ++number_;
  value_ = std::to_string(log.digest()) + " " + std::to_string(value);
  ask([this] { put_value(); });
}

std::vector<std::string> StoreRounds::read_all(const std::string& name) {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < group_.size; ++rank) {
    keys.push_back(key(name, rank));
  }
  return wait_in_looks(
      store_->deadline(), [&](TimePoint until) { return store_->multi_get(keys, until); },
      look_up_);
}

std::string StoreRounds::read(const std::string& name, TimePoint deadline) {
  return wait_in_looks(
      deadline, [&](TimePoint until) { return store_->get(key(name, 0), until); }, look_up_);
}

std::string StoreRounds::ranks_without(const std::string& name) {
  std::string missing;
  for (int64_t rank = 0; rank < group_.size; ++rank) {
    if (!store_->check({key(name, rank)})) {
      missing += (missing.empty() ? "" : ", ") + std::to_string(called(rank));
    }
  }
  return missing;
}

// set() has no answer, so it could be lost with its connection unnoticed.
void StoreRounds::publish(const std::string& name, const std::string& text) {
  ask([&] { return store_->compare_set(key(name, 0), "", text); });
}

StoreRounds::Verdict StoreRounds::verdict() {
  bool is_repeated = false;
  const auto put_again = [this, &is_repeated] {
    if (std::exchange(is_repeated, true)) {
      put_value();  // it may have been lost with the connection
    }
  };
  Verdict verdict{group_.rank == 0 ? decide(put_again) : hear(put_again)};
  forget_past_rounds();
  return verdict;
}

template <typename PutAgain>
std::string StoreRounds::decide(const PutAgain& put_again) {
  std::string verdict;
  try {
    verdict = comparison(ask([&] {
      put_again();
      return read_all("value");
    }));
  } catch (const StoreTimeout&) {
    verdict = kMissing + ranks_without("value");
  }
  publish("verdict", verdict);
  return verdict;
}

// Rank 0 may have arrived later, and waits from then on: a second timeout is long enough.
template <typename PutAgain>
std::string StoreRounds::hear(const PutAgain& put_again) {
  const auto get = [&] {
    put_again();
    return read("verdict", store_->deadline());
  };
  try {
    return ask(get);
  } catch (const StoreTimeout&) {
    if (!store_->check({key("value", 0)})) {
      return kMissing + ranks_without("value");
    }
  }
  return ask(get);
}

// Whoever has the verdict of a round knows that all ranks have seen the one before.
void StoreRounds::forget_past_rounds() {
  if (number_ - first_kept_ <= kRoundsKept) {
    return;
  }
  std::vector<std::string> keys;
  for (; first_kept_ < number_; ++first_kept_) {
    keys.push_back(key("value", group_.rank, first_kept_));
    if (group_.rank == 0) {
      keys.push_back(key("verdict", 0, first_kept_));
    }
  }
  ask([&] { store_->delete_keys(keys); });
}

// Rank 0 alone reads what all have issued.
std::string StoreRounds::explanation(const IssueLog& own) {
  const auto tell = [&] {
    store_->multi_set({key("lane0", group_.rank), key("lane1", group_.rank)},
                      {own.bytes_of(Lane::kGather), own.bytes_of(Lane::kReduce)});
  };
  if (group_.rank != 0) {
    return ask([&] {
      tell();
      // Rank 0 waits as long for the slowest rank before it gives up.
      return read("explanation", store_->deadline() + store_->timeout());
    });
  }
  std::string text;
  try {
    text = ask([&] {
      tell();
      const std::string first =
          own.first_difference(Lane::kGather, read_all("lane0"), group_.names);
      return first.empty() ? own.first_difference(Lane::kReduce, read_all("lane1"), group_.names)
                           : first;
    });
    text = text.empty() ? "the ranks have not issued the same operations, and do not remember "
                          "the first that differ"
                        : text;
  } catch (const StoreTimeout&) {
    text = "the ranks have not issued the same operations; what these have issued is unknown: " +
           ranks_without("lane1");
  }
  publish("explanation", text);
  return text;
}

std::string StoreRounds::incomplete(const Verdict& verdict, const IssueLog& own) const {
  return "of " + std::to_string(group_.size) + " ranks, after " +
         std::to_string(store_->timeout().count()) +
         " ms these ranks had not arrived: " + verdict.text.substr(sizeof(kMissing) - 1) +
         "; rank " + std::to_string(called(group_.rank)) + " had issued " + own.last() +
         " before it";
}

}  // namespace fsdp
