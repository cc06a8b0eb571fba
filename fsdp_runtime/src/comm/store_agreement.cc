#include "fsdp_runtime/src/comm/store_agreement.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/src/comm/host_collectives.h"

namespace fsdp {
namespace {

using Issued = std::vector<shm::Descriptor>;

/// What one rank has issued since the last agreement: a digest of all of it, and the latest
/// operations of each lane themselves. All ranks forget at the same numbers of operations, so that
/// what they remember starts at the same operation.
struct Log {
  static constexpr size_t kRemembered = 4096;

  uint64_t digest = 0xcbf29ce484222325;  // FNV-1a
  std::array<Issued, 2> lanes;
  std::array<uint64_t, 2> forgotten{};

  void add(Lane lane, const shm::Descriptor& issued);

 private:
  void mix(uint64_t value) { digest = (digest ^ value) * 0x100000001b3; }
};

void Log::add(Lane lane, const shm::Descriptor& issued) {
  const auto index = static_cast<size_t>(lane);
  if (lanes[index].size() == kRemembered) {
    lanes[index].clear();
    forgotten[index] += kRemembered;
  }
  lanes[index].push_back(issued);
  for (const uint64_t value :
       {static_cast<uint64_t>(index), static_cast<uint64_t>(issued.kind),
        static_cast<uint64_t>(issued.dtype), static_cast<uint64_t>(issued.op),
        static_cast<uint64_t>(issued.root), issued.numel}) {
    mix(value);
  }
  for (const char letter : issued.purpose) {
    mix(static_cast<unsigned char>(letter));
  }
}

constexpr char kUnanimous[] = "unanimous";
constexpr char kDivided[] = "divided";
constexpr char kOutOfStep[] = "out of step";

shm::DType dtype_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat:
      return shm::DType::kF32;
    case at::kDouble:
      return shm::DType::kF64;
    case at::kBFloat16:
      return shm::DType::kBF16;
    case at::kHalf:
      return shm::DType::kF16;
    case at::kInt:
      return shm::DType::kI32;
    case at::kLong:
      return shm::DType::kI64;
    default:
      return shm::DType::kByte;
  }
}

std::string bytes_of(const Issued& issued) {
  return {reinterpret_cast<const char*>(issued.data()), issued.size() * sizeof(shm::Descriptor)};
}

Issued issued_from(const std::string& bytes) {
  Issued issued(bytes.size() / sizeof(shm::Descriptor));
  std::memcpy(issued.data(), bytes.data(), issued.size() * sizeof(shm::Descriptor));
  return issued;
}

/// The first operation of a lane that not all ranks have issued; "" if there is none.
std::string first_difference(const std::vector<Issued>& by_rank, int lane, uint64_t forgotten) {
  size_t longest = 0;
  for (const Issued& own : by_rank) {
    longest = std::max(longest, own.size());
  }
  for (size_t i = 0; i < longest; ++i) {
    std::vector<shm::Descriptor> issued;
    for (const Issued& own : by_rank) {
      // Whoever has issued no more has gone on to the agreement.
      issued.push_back(i < own.size() ? own[i] : shm::Descriptor{});
    }
    if (std::any_of(issued.begin(), issued.end(), [&issued](const shm::Descriptor& other) {
          return !shm::is_same_operation(other, issued.front());
        })) {
      return shm::describe_out_of_step(issued, lane, forgotten + i + 1);
    }
  }
  return "";
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

  AgreementPtr agree(uint64_t value) override {
    name_next("");
    ++round_;
    store_->set(key("value", rank()), std::to_string(log_.digest) + " " + std::to_string(value));
    return std::make_shared<Round>(this, round_, std::exchange(log_, {}));
  }

 private:
  class Round : public Agreement {
   public:
    Round(StoreAgreement* group, uint64_t number, Log log)
        : group_(group), number_(number), log_(std::move(log)) {}
    bool wait() override {
      if (verdict_.empty()) {
        TORCH_INTERNAL_ASSERT(number_ == group_->round_, "an agreement was asked for before");
        verdict_ = group_->verdict();
        group_->forget_last_round();
      }
      if (verdict_ == kOutOfStep) {
        group_->throw_out_of_step(log_);
      }
      return verdict_ == kUnanimous;
    }

   private:
    StoreAgreement* group_;
    uint64_t number_;
    Log log_;
    std::string verdict_;
  };

  std::string key(const std::string& name, int64_t rank, uint64_t rounds_ago = 0) const {
    return prefix_ + "/" + name + "/" + std::to_string(round_ - rounds_ago) + "/" +
           std::to_string(rank);
  }

  std::vector<std::string> read_all(const std::string& name) {
    std::vector<std::string> keys;
    for (int64_t rank = 0; rank < size(); ++rank) {
      keys.push_back(key(name, rank));
    }
    return store_->multi_get(keys, store_->deadline());
  }

  void log(Lane lane, shm::Descriptor descriptor, const at::Tensor& tensor) {
    if (tensor.defined()) {
      descriptor.dtype = dtype_of(tensor);
      descriptor.numel = static_cast<uint64_t>(tensor.numel());
    }
    descriptor.purpose = shm::purpose_of(std::exchange(purpose_, {}));
    log_.add(lane, descriptor);
  }

  // Rank 0 compares and tells the others.
  std::string verdict() {
    if (rank() != 0) {
      return store_->get(key("verdict", 0), store_->deadline());
    }
    const std::vector<std::string> all = read_all("value");
    const auto is_equal = [&all](size_t length) {
      return std::all_of(all.begin(), all.end(), [&](const std::string& other) {
        return other.substr(0, length) == all.front().substr(0, length);
      });
    };
    const std::string verdict = is_equal(std::string::npos)           ? kUnanimous
                                : is_equal(all.front().find(' ') + 1) ? kDivided
                                                                      : kOutOfStep;
    store_->set(key("verdict", 0), verdict);
    return verdict;
  }

  // Whoever has the verdict of a round knows that all ranks have seen the one before.
  void forget_last_round() {
    if (round_ > 1) {
      store_->delete_key(key("value", rank(), 1));
      if (rank() == 0) {
        store_->delete_key(key("verdict", 0, 1));
      }
    }
  }

  [[noreturn]] void throw_out_of_step(const Log& own) {
    for (size_t lane = 0; lane < own.lanes.size(); ++lane) {
      const std::string name = "lane" + std::to_string(lane);
      store_->set(key(name, rank()), bytes_of(own.lanes[lane]));
      std::vector<Issued> by_rank;
      for (const std::string& bytes : read_all(name)) {
        by_rank.push_back(issued_from(bytes));
      }
      const std::string difference =
          first_difference(by_rank, static_cast<int>(lane), own.forgotten[lane]);
      TORCH_CHECK(difference.empty(), difference);
    }
    TORCH_CHECK(false, "the ranks have not issued the same operations; rank ", rank(),
                " does not remember the first that differ");
  }

  const std::shared_ptr<Collectives> inner_;
  const std::shared_ptr<StoreClient> store_;
  const std::string prefix_;
  uint64_t round_ = 0;
  std::string purpose_;  // of the next operation
  Log log_;
};

}  // namespace

std::shared_ptr<Collectives> agree_through_store(std::shared_ptr<Collectives> inner,
                                                 std::shared_ptr<StoreClient> store,
                                                 std::string prefix) {
  return std::make_shared<StoreAgreement>(std::move(inner), std::move(store), std::move(prefix));
}

}  // namespace fsdp
