#include "fsdp_runtime/src/comm/store_agreement.h"

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/src/comm/collective_board.h"
#include "fsdp_runtime/src/comm/group_error.h"
#include "fsdp_runtime/src/comm/host_collectives.h"
#include "fsdp_runtime/src/comm/issue_log.h"
#include "fsdp_runtime/src/comm/store_rounds.h"
#include "fsdp_runtime/src/comm/watched_window.h"

namespace fsdp {
namespace {

/// What cannot be reduced is only moved.
shm::DType dtype_of(const at::Tensor& tensor) {
  return reducible_dtype(tensor).value_or(shm::DType::kByte);
}

SequenceRecorder::Patience patience_of(const AgreementOptions& options, const StoreClient& store) {
  return options.patience.value_or(SequenceRecorder::patience_for(store.timeout()));
}

class StoreAgreement : public FormedCollectives,
                       public std::enable_shared_from_this<StoreAgreement> {
 public:
  StoreAgreement(std::shared_ptr<Collectives> inner, std::shared_ptr<StoreClient> store,
                 std::string prefix, const AgreementOptions& options)
      : inner_(std::move(inner)),
        names_(options.names),
        membership_(options.membership),
        group_(options.group),
        departure_(options.departure),
        rounds_(store, prefix, {inner_->rank(), inner_->size(), names_},
                [this](bool store_answers) { look_up(store_answers); }),
        recorder_(std::make_shared<StoreClient>(store->host(), store->port(),
                                                patience_of(options, *store).answer),
                  prefix, {inner_->rank(), inner_->size(), names_}, patience_of(options, *store),
                  [this](const std::string& difference) {
                    if (membership_) {
                      membership_->revoke({difference, {}});
                    }
                    inner_->abort(difference);
                  }) {}

  int64_t rank() const override { return inner_->rank(); }
  int64_t size() const override { return inner_->size(); }
  std::vector<int64_t> world_ranks() const override { return inner_->world_ranks(); }
  std::string name() const override { return inner_->name(); }
  c10::Device device() const override { return inner_->device(); }
  at::Tensor empty_for_comm(int64_t numel, at::ScalarType dtype) override {
    return inner_->empty_for_comm(numel, dtype);
  }
  int64_t window_alignment() const override { return inner_->window_alignment(); }
  std::shared_ptr<GatherWindow> make_gather_window(int64_t numel, at::ScalarType dtype,
                                                   std::string purpose) override {
    recorder_.add(Lane::kGather, {.kind = shm::Kind::kAllGather,
                                  .numel = static_cast<uint64_t>(numel),
                                  .purpose = shm::purpose_of("the window of " + purpose)});
    auto window = inner_->make_gather_window(numel, dtype, std::move(purpose));
    if (window == nullptr) {
      return nullptr;
    }
    return std::make_shared<WatchedWindow>(
        std::move(window), [group = weak_from_this()](GatherWindow& inner, Issue issue) {
          const std::shared_ptr<StoreAgreement> self = group.lock();
          TORCH_CHECK(self, "all_gather for ", issue.purpose, ": the group of its window is gone");
          issue.lane = Lane::kGather;
          self->log(issue, {.kind = shm::Kind::kAllGather}, inner.own());
          return self->kept(inner.issue(std::move(issue)));
        });
  }

  WorkPtr all_gather_into(at::Tensor output, at::Tensor input, Issue issue) override {
    log(issue, {.kind = shm::Kind::kAllGather}, input);
    return kept(inner_->all_gather_into(std::move(output), std::move(input), std::move(issue)));
  }
  WorkPtr reduce_scatter_into(at::Tensor output, at::Tensor input, ReduceOp op,
                              Issue issue) override {
    log(issue, {.kind = shm::Kind::kReduceScatter, .op = transport_op(op)}, output);
    return kept(
        inner_->reduce_scatter_into(std::move(output), std::move(input), op, std::move(issue)));
  }
  WorkPtr all_reduce(at::Tensor tensor, ReduceOp op, Issue issue) override {
    log(issue, {.kind = shm::Kind::kAllReduce, .op = transport_op(op)}, tensor);
    return kept(inner_->all_reduce(std::move(tensor), op, std::move(issue)));
  }
  WorkPtr broadcast(at::Tensor tensor, int64_t root, Issue issue) override {
    log(issue, {.kind = shm::Kind::kBroadcast, .root = static_cast<int32_t>(root)}, tensor);
    return kept(inner_->broadcast(std::move(tensor), root, std::move(issue)));
  }
  void barrier() override {
    log(Lane::kReduce, {.kind = shm::Kind::kBarrier}, at::Tensor());
    const SequenceRecorder::Waiting waiting(recorder_, nullptr);
    inner_->barrier();
  }
  WorkPtr run_on_lane(Issue issue, std::function<void()> stage) override {
    return inner_->run_on_lane(std::move(issue), std::move(stage));
  }
  void check_results(const std::string& operation) const override {
    inner_->check_results(operation);
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

  /// An operation of the log, compared by the next agreement: that of the backward if one follows,
  /// else one that wait() asks for.
  WorkPtr mark(Issue issue) override {
    log(issue, {.kind = shm::Kind::kBarrier}, at::Tensor());
    return std::make_shared<Mark>(weak_from_this(), rounds_.number());
  }

  AgreementPtr agree(uint64_t value, std::string) override {
    std::shared_ptr<const IssueLog> log = recorder_.next_round();
    or_lost([&] { rounds_.begin(*log, value); });
    return std::make_shared<Round>(weak_from_this(), rounds_.number(), std::move(log));
  }

 private:
  // What a group hands out may outlive it.
  class Round : public Agreement {
   public:
    Round(std::weak_ptr<StoreAgreement> group, uint64_t number, std::shared_ptr<const IssueLog> log)
        : weak_group_(std::move(group)), number_(number), log_(std::move(log)) {}
    bool wait() override {
      const std::shared_ptr<StoreAgreement> group = weak_group_.lock();
      TORCH_CHECK(group, "agreement #", number_, ": its group is gone");
      if (!verdict_) {
        TORCH_INTERNAL_ASSERT(number_ == group->rounds_.number(),
                              "an agreement was asked for before");
        const SequenceRecorder::Waiting waiting(group->recorder_, log_);
        const OpenCollective open({"agreement", group_text(group->names_)});
        const HostWait host_waits;
        verdict_ = group->or_lost([&] { return group->rounds_.verdict(); });
      }
      if (verdict_->is_out_of_step()) {
        group->fail({group->or_lost([&] { return group->rounds_.explanation(*log_); }), {}});
      }
      if (verdict_->is_incomplete()) {
        group->fail({group->rounds_.incomplete(*verdict_, *log_), {}});
      }
      return verdict_->is_unanimous();
    }

   private:
    const std::weak_ptr<StoreAgreement> weak_group_;
    uint64_t number_;
    std::shared_ptr<const IssueLog> log_;
    std::optional<StoreRounds::Verdict> verdict_;
  };

  class Mark : public Work {
   public:
    Mark(std::weak_ptr<StoreAgreement> group, uint64_t round)
        : weak_group_(std::move(group)), round_(round) {}
    void wait() override {
      const std::shared_ptr<StoreAgreement> group = weak_group_.lock();
      if (group && group->rounds_.number() == round_) {
        group->agree(0, {})->wait();
      }
    }
    bool is_done() override {
      const std::shared_ptr<StoreAgreement> group = weak_group_.lock();
      return !group || group->rounds_.number() != round_;
    }

   private:
    const std::weak_ptr<StoreAgreement> weak_group_;
    const uint64_t round_;
  };

  /// While this rank waits for others: who is gone, or waits for it on the device, does not come.
  void look_up(bool store_answers) {
    if (!membership_) {
      return;
    }
    if (const std::optional<GroupFailure> failure = membership_->failure()) {
      throw_as_mine(*failure);
    }
    // Whoever has left comes to no agreement; that it has come to this one the store would say.
    const std::optional<GroupFailure> gone =
        store_answers ? membership_->departure(group_, names_, departure_) : std::nullopt;
    if (gone) {
      fail(*gone);
    }
  }

  /// Tells all ranks, some of which may wait in other groups. Throws the first failure.
  [[noreturn]] void fail(const GroupFailure& failure) {
    throw_as_mine(membership_ ? membership_->revoke(failure) : failure);
  }

  [[noreturn]] void throw_as_mine(const GroupFailure& failure) const {
    throw_failure(failure, "agreement #" + std::to_string(rounds_.number()), rounds_.called(rank()),
                  {});
  }

  /// A rank that loses the store is lost to its peers, but a victim itself: the store is on another
  /// rank's node, or its server ends the world.
  template <typename Call>
  std::invoke_result_t<Call> or_lost(const Call& call) {
    try {
      return call();
    } catch (const StoreError& error) {
      const std::string what = std::string("the ranks cannot agree: ") + error.what();
      const GroupFailure own{
          "rank " + std::to_string(rounds_.called(rank())) + " has lost the store, so " + what,
          rounds_.called(rank())};
      const GroupFailure first = membership_ ? membership_->revoke(own) : own;
      if (first.lost_rank != own.lost_rank) {
        throw_as_mine(first);
      }
      throw PeerError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what);
    }
  }

  void log(const Issue& issue, shm::Descriptor descriptor, const at::Tensor& tensor) {
    if (tensor.defined()) {
      descriptor.dtype = dtype_of(tensor);
      descriptor.numel = static_cast<uint64_t>(tensor.numel());
    }
    descriptor.purpose = shm::purpose_of(issue.purpose);
    recorder_.add(issue.lane, descriptor);
  }

  WorkPtr kept(WorkPtr work) {
    recorder_.keep(work);
    return work;
  }

  const std::shared_ptr<Collectives> inner_;
  const std::vector<int64_t> names_;
  const std::shared_ptr<Membership> membership_;  // may be null
  const std::string group_;
  const std::chrono::milliseconds departure_;
  StoreRounds rounds_;
  SequenceRecorder recorder_;  // the last member: its thread uses the inner group
};

}  // namespace

std::shared_ptr<FormedCollectives> agree_through_store(std::shared_ptr<Collectives> inner,
                                                       std::shared_ptr<StoreClient> store,
                                                       std::string prefix,
                                                       const AgreementOptions& options) {
  return std::make_shared<StoreAgreement>(std::move(inner), std::move(store), std::move(prefix),
                                          options);
}

}  // namespace fsdp
