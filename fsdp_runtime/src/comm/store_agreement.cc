#include "fsdp_runtime/src/comm/store_agreement.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/src/comm/host_collectives.h"
#include "fsdp_runtime/src/comm/issue_log.h"

namespace fsdp {
namespace {

constexpr char kUnanimous[] = "unanimous";
constexpr char kDivided[] = "divided";
constexpr char kOutOfStep[] = "out of step";
constexpr char kMissing[] = "missing: ";

/// Rounds whose keys are removed together, because that is a round trip on the training's path.
constexpr uint64_t kRoundsKept = 64;

/// What cannot be reduced is only moved.
shm::DType dtype_of(const at::Tensor& tensor) {
  return reducible_dtype(tensor).value_or(shm::DType::kByte);
}

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

/// A rank that has lost the store is a victim: the store is on another rank's node, or its server
/// ends the world.
template <typename Call>
auto or_peer_lost(const Call& call) {
  try {
    return call();
  } catch (const StoreError& error) {
    throw PeerError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                    std::string("the ranks cannot agree: ") + error.what());
  }
}

std::string joined(const std::vector<int64_t>& ranks) {
  std::string text;
  for (const int64_t rank : ranks) {
    text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

class StoreAgreement : public Collectives {
 public:
  StoreAgreement(std::shared_ptr<Collectives> inner, std::shared_ptr<StoreClient> store,
                 std::string prefix)
      : inner_(std::move(inner)), store_(std::move(store)), prefix_(std::move(prefix)) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  std::string name() const override { return inner_->name(); }
  c10::Device device() const override { return inner_->device(); }
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    return inner_->empty_for_comm(numel, dtype);
  }
  void name_next(std::string purpose) override { purpose_ = std::move(purpose); }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Lane lane) override {
    log(lane, {.kind = shm::Kind::kAllGather}, input);
    return inner_->all_gather_into(std::move(output), std::move(input), lane);
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Lane lane) override {
    log(lane, {.kind = shm::Kind::kReduceScatter, .op = transport_op(op)}, output);
    return inner_->reduce_scatter_into(std::move(output), std::move(input), op, lane);
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Lane lane) override {
    log(lane, {.kind = shm::Kind::kAllReduce, .op = transport_op(op)}, tensor);
    return inner_->all_reduce(std::move(tensor), op, lane);
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Lane lane) override {
    log(lane, {.kind = shm::Kind::kBroadcast, .root = static_cast<int32_t>(root)}, tensor);
    return inner_->broadcast(std::move(tensor), root, lane);
  }
  void barrier() override {
    log(Lane::kReduce, {.kind = shm::Kind::kBarrier}, at::Tensor());
    inner_->barrier();
  }

  /// An operation of the log, compared by the next agreement: that of the backward if one follows,
  /// else one that wait() asks for.
  WorkPtr mark(Lane lane) override {
    log(lane, {.kind = shm::Kind::kBarrier}, at::Tensor());
    return std::make_shared<Mark>(this, round_);
  }

  AgreementPtr agree(uint64_t value) override {
    name_next("");
    ++round_;
    value_ = std::to_string(log_.digest()) + " " + std::to_string(value);
    or_peer_lost([this] { ask([this] { put_value(); }); });
    return std::make_shared<Round>(this, round_, std::exchange(log_, {}));
  }

 private:
  class Round : public Agreement {
   public:
    Round(StoreAgreement* group, uint64_t number, IssueLog log)
        : group_(group), number_(number), log_(std::move(log)) {}
    bool wait() override {
      if (verdict_.empty()) {
        TORCH_INTERNAL_ASSERT(number_ == group_->round_, "an agreement was asked for before");
        or_peer_lost([this] {
          verdict_ = group_->verdict();
          group_->forget_past_rounds();
        });
      }
      if (verdict_ == kOutOfStep) {
        const std::string difference = or_peer_lost([this] { return group_->explanation(log_); });
        TORCH_CHECK(false, difference);
      }
      TORCH_CHECK(verdict_.rfind(kMissing, 0) != 0, "agreement #", number_, " of ", group_->size(),
                  " ranks: after ", group_->store_->timeout().count(),
                  " ms these ranks had not arrived: ", verdict_.substr(sizeof(kMissing) - 1),
                  "; rank ", group_->rank(), " had issued ", log_.last(), " before it");
      return verdict_ == kUnanimous;
    }

   private:
    StoreAgreement* group_;
    uint64_t number_;
    IssueLog log_;
    std::string verdict_;
  };

  class Mark : public Work {
   public:
    Mark(StoreAgreement* group, uint64_t round) : group_(group), round_(round) {}
    void wait() override {
      if (group_->round_ == round_) {
        group_->agree(0)->wait();
      }
    }

   private:
    StoreAgreement* group_;
    uint64_t round_;
  };

  std::string key(const std::string& name, int64_t rank, uint64_t round) const {
    return prefix_ + "/" + name + "/" + std::to_string(round) + "/" + std::to_string(rank);
  }
  std::string key(const std::string& name, int64_t rank) const { return key(name, rank, round_); }

  std::vector<std::string> read_all(const std::string& name) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < size(); ++rank) {
      keys.push_back(key(name, rank));
    }
    return store_->multi_get(keys, store_->deadline());
  }

  /// Asks for each rank once and waits for none.
  std::vector<int64_t> ranks_without(const std::string& name) {
    std::vector<int64_t> missing;
    for (int64_t rank = 0; rank < size(); ++rank) {
      if (!store_->check({key(name, rank)})) {
        missing.push_back(rank);
      }
    }
    return missing;
  }

  void log(Lane lane, shm::Descriptor descriptor, const at::Tensor& tensor) {
    if (tensor.defined()) {
      descriptor.dtype = dtype_of(tensor);
      descriptor.numel = static_cast<uint64_t>(tensor.numel());
    }
    descriptor.purpose = shm::purpose_of(std::exchange(purpose_, {}));
    log_.add(lane, descriptor);
  }

  void put_value() { store_->set(key("value", rank()), value_); }

  /// For the other ranks. set() has no answer, so it could be lost with its connection unnoticed.
  void publish(const std::string& name, const std::string& text) {
    ask([&] { return store_->compare_set(key(name, 0), "", text); });
  }

  // Rank 0 compares and tells the others.
  std::string verdict() {
    bool is_repeated = false;
    const auto put_again = [this, &is_repeated] {
      if (std::exchange(is_repeated, true)) {
        put_value();  // it may have been lost with the connection
      }
    };
    if (rank() != 0) {
      return verdict_of_rank_0(put_again);
    }
    std::string verdict;
    try {
      verdict = comparison(ask([&] {
        put_again();
        return read_all("value");
      }));
    } catch (const StoreTimeout&) {
      verdict = kMissing + joined(ranks_without("value"));
    }
    publish("verdict", verdict);
    return verdict;
  }

  static std::string comparison(const std::vector<std::string>& values) {
    const auto is_equal = [&values](size_t length) {
      return std::all_of(values.begin(), values.end(), [&](const std::string& other) {
        return other.substr(0, length) == values.front().substr(0, length);
      });
    };
    return is_equal(std::string::npos)              ? kUnanimous
           : is_equal(values.front().find(' ') + 1) ? kDivided
                                                    : kOutOfStep;
  }

  // Rank 0 may have arrived later, and waits from then on: a second timeout is long enough.
  template <typename PutAgain>
  std::string verdict_of_rank_0(const PutAgain& put_again) {
    const auto get = [&] {
      put_again();
      return store_->get(key("verdict", 0), store_->deadline());
    };
    try {
      return ask(get);
    } catch (const StoreTimeout&) {
      if (!store_->check({key("value", 0)})) {
        return kMissing + joined(ranks_without("value"));
      }
    }
    return ask(get);
  }

  // Whoever has the verdict of a round knows that all ranks have seen the one before.
  void forget_past_rounds() {
    if (round_ - first_kept_ <= kRoundsKept) {
      return;
    }
    std::vector<std::string> keys;
    for (; first_kept_ < round_; ++first_kept_) {
      keys.push_back(key("value", rank(), first_kept_));
      if (rank() == 0) {
        keys.push_back(key("verdict", 0, first_kept_));
      }
    }
    ask([&] { store_->delete_keys(keys); });
  }

  /// The first operation that differs. Rank 0 alone reads what all have issued.
  std::string explanation(const IssueLog& own) {
    const auto tell = [&] {
      store_->multi_set({key("lane0", rank()), key("lane1", rank())},
                        {own.bytes_of(Lane::kGather), own.bytes_of(Lane::kReduce)});
    };
    if (rank() != 0) {
      return ask([&] {
        tell();
        // Rank 0 waits as long for the slowest rank before it gives up.
        return store_->get(key("explanation", 0), store_->deadline() + store_->timeout());
      });
    }
    std::string text;
    try {
      text = ask([&] {
        tell();
        const std::string first = own.first_difference(Lane::kGather, read_all("lane0"));
        return first.empty() ? own.first_difference(Lane::kReduce, read_all("lane1")) : first;
      });
      text = text.empty() ? "the ranks have not issued the same operations, and do not remember "
                            "the first that differ"
                          : text;
    } catch (const StoreTimeout&) {
      text = "the ranks have not issued the same operations; what these have issued is unknown: " +
             joined(ranks_without("lane1"));
    }
    publish("explanation", text);
    return text;
  }

  const std::shared_ptr<Collectives> inner_;
  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
  uint64_t round_ = 0;
  uint64_t first_kept_ = 1;  // round whose keys are still in the store
  std::string value_;        // of this round
  std::string purpose_;      // of the next operation
  IssueLog log_;
};

}  // namespace

std::shared_ptr<Collectives> agree_through_store(std::shared_ptr<Collectives> inner,
                                                 std::shared_ptr<StoreClient> store,
                                                 std::string prefix) {
  return std::make_shared<StoreAgreement>(std::move(inner), std::move(store), std::move(prefix));
}

}  // namespace fsdp
