#include "fsdp_runtime/src/comm/gloo_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <limits>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/shm/reduce.h"
#include "fsdp_runtime/src/comm/c10d_store.h"
#include "fsdp_runtime/src/comm/host_collectives.h"
#include "fsdp_runtime/src/comm/sigpipe_block.h"

namespace fsdp {
namespace {

using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;

// Up to this size an all-reduce is one exchange of everything; above, a reduce-scatter and an
// all-gather.
constexpr size_t kAllReduceOneShotBytes = 64 * 1024;

Group make_group(const std::shared_ptr<StoreClient>& store, const std::string& prefix,
                 const std::string& address, int64_t rank, int64_t size,
                 std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupGloo::Options::create(timeout);
  options->threads = 1;
  const std::optional<std::string> interface = gloo_interface();
  options->devices.push_back(
      interface ? c10d::ProcessGroupGloo::createDeviceForInterface(*interface)
                : c10d::ProcessGroupGloo::createDeviceForHostname(address));
  // A separate connection per group, because Gloo blocks in the store.
  auto own = c10::make_intrusive<ClientStore>(
      std::make_shared<StoreClient>(store->host(), store->port(), timeout), prefix);
  return c10::make_intrusive<c10d::ProcessGroupGloo>(own, static_cast<int>(rank),
                                                     static_cast<int>(size), options);
}

// c10d's flight recorder, one for all groups of the process, enters a group that is new to it
// before it takes its lock (2.11): two groups that broadcast for the first time at once would break
// its map. Of what is called here, only collectives are recorded.
c10::intrusive_ptr<c10d::Work> start_broadcast(const Group& group, std::vector<at::Tensor>& tensors,
                                               const c10d::BroadcastOptions& options) {
  static std::mutex recorder;
  const std::lock_guard lock(recorder);
  return group->broadcast(tensors, options);
}

// Messages between two ranks with one tag arrive in order, so this one serves all descriptors.
constexpr int kDescriptorTag = 1;

// Of the data of an operation. Messages meet only under the same tag: if ranks disagree, no data
// reaches a buffer that is not for it.
int data_tag(const shm::Descriptor& descriptor) {
  Fnv1a fields;
  fields.mix(static_cast<uint64_t>(descriptor.kind));
  fields.mix(static_cast<uint64_t>(descriptor.dtype));
  fields.mix(static_cast<uint64_t>(descriptor.op));
  fields.mix(static_cast<uint64_t>(descriptor.root));
  fields.mix(descriptor.numel);
  fields.mix(descriptor.purpose.digest);
  const uint64_t digest = fields.digest();
  constexpr uint64_t kTags = std::numeric_limits<int>::max() - kDescriptorTag;
  return kDescriptorTag + 1 + static_cast<int>((digest ^ (digest >> 32)) % kTags);
}

// Gloo's own reduce-scatter is an all-reduce of the whole input. Here every pair of ranks exchanges
// only what the other needs, without copies, and sums in rank order: half the traffic, and the same
// bits in every run. At two ranks the result is bit-equal to Gloo's.
class GlooCollectives : public HostCollectives {
 public:
  GlooCollectives(std::array<Group, 2> groups, int64_t rank, int64_t size)
      : HostCollectives(rank, size), groups_(std::move(groups)) {}
  ~GlooCollectives() override { stop_lanes(); }

  std::string name() const override { return "gloo"; }

 protected:
  void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) override {
    at::Tensor out = bytes_of(output);
    at::Tensor own = bytes_of(input);
    const int64_t n = own.numel();
    exchange(
        lane, {.kind = shm::Kind::kAllGather, .numel = static_cast<uint64_t>(n)},
        [&](int64_t) { return own; }, [&](int64_t peer) { return out.narrow(0, peer * n, n); });
    char* target = static_cast<char*>(out.data_ptr()) + rank() * n;
    if (n > 0 && target != own.data_ptr()) {
      std::memcpy(target, own.data_ptr(), static_cast<size_t>(n));
    }
  }

  void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op) override {
    at::Tensor in = bytes_of(input);
    const auto n = static_cast<int64_t>(output.nbytes());
    at::Tensor received = scratch(lane, n * size());
    exchange(
        lane, reduction(shm::Kind::kReduceScatter, output, op),
        [&](int64_t peer) { return in.narrow(0, peer * n, n); },
        [&](int64_t peer) { return received.narrow(0, peer * n, n); });
    const auto* own = static_cast<const char*>(in.data_ptr()) + rank() * n;
    reduce_received(output, own, received, op);
  }

  void do_all_reduce(int lane, at::Tensor& tensor, ReduceOp op) override {
    at::Tensor flat = tensor.view({-1});
    const int64_t share = flat.numel() / size();
    if (tensor.nbytes() <= kAllReduceOneShotBytes || share == 0) {
      return all_reduce_at_once(lane, flat, op);
    }
    at::Tensor even = flat.narrow(0, 0, share * size());
    at::Tensor own = flat.narrow(0, rank() * share, share);
    do_reduce_scatter(lane, own, even, op);
    do_all_gather(lane, even, own);
    if (flat.numel() > share * size()) {
      at::Tensor rest = flat.narrow(0, share * size(), flat.numel() - share * size());
      all_reduce_at_once(lane, rest, op);
    }
  }

  void do_broadcast(int lane, at::Tensor& tensor, int64_t root) override {
    std::vector<at::Tensor> tensors{bytes_of(tensor)};
    c10d::BroadcastOptions options;
    options.rootRank = root;
    const std::string name = begin(lane, {.kind = shm::Kind::kBroadcast,
                                          .root = static_cast<int32_t>(root),
                                          .numel = static_cast<uint64_t>(tensors[0].numel())});
    try {
      start_broadcast(groups_[static_cast<size_t>(lane)], tensors, options)->wait();
    } catch (const std::exception& error) {
      throw_lost(name, "a rank", error);
    }
  }

  // Complete once every rank has told that it has begun.
  void do_barrier(int lane) override { begin(lane, {.kind = shm::Kind::kBarrier}); }

  void set_purpose(int lane, const std::string& purpose) override {
    purpose_[static_cast<size_t>(lane)] = shm::purpose_of(purpose);
  }

  void interrupt() override {
    fail("rank " + std::to_string(rank()) +
         " destroyed its process group while operations were in flight");
  }

 private:
  static at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

  at::Tensor scratch(int lane, int64_t bytes) {
    at::Tensor& kept = scratch_[static_cast<size_t>(lane)];
    if (!kept.defined() || kept.numel() < bytes) {
      kept = at::empty({bytes}, at::kByte);
    }
    return kept;
  }

  void all_reduce_at_once(int lane, at::Tensor& tensor, ReduceOp op) {
    at::Tensor own = bytes_of(tensor);
    const int64_t n = own.numel();
    at::Tensor received = scratch(lane, n * size());
    exchange(
        lane, reduction(shm::Kind::kAllReduce, tensor, op), [&](int64_t) { return own; },
        [&](int64_t peer) { return received.narrow(0, peer * n, n); });
    reduce_received(tensor, own.data_ptr(), received, op);
  }

  void reduce_received(at::Tensor& output, const void* own, const at::Tensor& received,
                       ReduceOp op) {
    std::vector<const void*> sources;
    for (int64_t peer = 0; peer < size(); ++peer) {
      const auto* slot = static_cast<const char*>(received.data_ptr()) +
                         static_cast<size_t>(peer) * output.nbytes();
      sources.push_back(peer == rank() ? own : slot);
    }
    shm::reduce_ordered(output.data_ptr(), sources.data(), sources.size(),
                        static_cast<size_t>(output.numel()), reduction_dtype(output),
                        transport_op(op));
  }

  static shm::Descriptor reduction(shm::Kind kind, const at::Tensor& output, ReduceOp op) {
    return {.kind = kind,
            .dtype = reduction_dtype(output),
            .op = transport_op(op),
            .numel = static_cast<uint64_t>(output.numel())};
  }

  // After a timeout of the operation the peer may be late, or may never have issued it. Anything
  // else means that the connection has ended and the peer is gone.
  [[noreturn]] void throw_lost(const std::string& operation, const std::string& peer,
                               const std::exception& error) {
    throw_if_failed();
    const std::string reason = error.what();
    const bool is_late = is_gloo_timeout(reason);
    const std::string what = c10::str(operation, ": rank ", rank(),
                                      is_late ? " gave up on " : " lost ", peer, ": ", reason);
    TORCH_CHECK(!is_late, what);
    throw PeerError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what);
  }

  struct Transfer {
    int64_t peer;
    std::vector<at::Tensor> tensors;
    c10::intrusive_ptr<c10d::Work> work;
  };
  using Transfers = std::vector<Transfer>;

  /// An operation whose descriptors are under way.
  struct Operation {
    int lane = 0;
    uint64_t sequence = 0;
    shm::Descriptor own;
    std::string name;
    std::vector<shm::Descriptor> issued;  // by all ranks, once the transfers are complete
    Transfers transfers;
  };

  // Gloo does not know what a message is for, and one that is larger than expected ends the
  // process. So all ranks tell each other what they are about to do.
  std::unique_ptr<Operation> announce(int lane, shm::Descriptor own) {
    auto operation = std::make_unique<Operation>();
    own.purpose = purpose_[static_cast<size_t>(lane)];
    operation->lane = lane;
    operation->sequence = ++sequence_[static_cast<size_t>(lane)];
    operation->own = own;
    operation->name = shm::describe(own, lane, operation->sequence);
    operation->issued.assign(static_cast<size_t>(size()), own);
    const auto message = [&](int64_t rank) {
      return at::from_blob(&operation->issued[static_cast<size_t>(rank)], {sizeof(shm::Descriptor)},
                           at::kByte);
    };
    operation->transfers = issue(
        *operation, kDescriptorTag, [&](int64_t) { return message(rank()); }, message);
    return operation;
  }

  void check_in_step(const Operation& operation) {
    finish(operation, operation.transfers);
    const bool is_in_step = std::all_of(
        operation.issued.begin(), operation.issued.end(),
        [&](const shm::Descriptor& other) { return shm::is_same_operation(other, operation.own); });
    if (!is_in_step) {
      fail(shm::describe_out_of_step(operation.issued, operation.lane, operation.sequence));
      throw_if_failed();
    }
  }

  // An operation that all ranks have begun. Returns its name.
  std::string begin(int lane, const shm::Descriptor& own) {
    const auto operation = announce(lane, own);
    const InFlight in_flight(*this, lane, {&operation->transfers});
    check_in_step(*operation);
    return operation->name;
  }

  // Sends outgoing(peer) to and receives incoming(peer) from every peer at once, while the
  // descriptors are still under way.
  template <typename Outgoing, typename Incoming>
  void exchange(int lane, const shm::Descriptor& own, Outgoing outgoing, Incoming incoming) {
    const auto operation = announce(lane, own);
    const Transfers data = issue(*operation, data_tag(operation->own), outgoing, incoming);
    const InFlight in_flight(*this, lane, {&operation->transfers, &data});
    check_in_step(*operation);
    finish(*operation, data);
  }

  template <typename Outgoing, typename Incoming>
  Transfers issue(const Operation& operation, int tag, Outgoing outgoing, Incoming incoming) {
    const Group& group = groups_[static_cast<size_t>(operation.lane)];
    Transfers transfers;
    for (const bool is_send : {false, true}) {
      for (int64_t step = 1; step < size(); ++step) {
        const int64_t peer = (rank() + step) % size();
        Transfer transfer{peer, {is_send ? outgoing(peer) : incoming(peer)}, nullptr};
        attempt(operation, peer, [&] {
          transfer.work = is_send ? group->send(transfer.tensors, static_cast<int>(peer), tag)
                                  : group->recv(transfer.tensors, static_cast<int>(peer), tag);
        });
        transfers.push_back(std::move(transfer));
      }
    }
    return transfers;
  }

  void finish(const Operation& operation, const Transfers& transfers) {
    for (const Transfer& transfer : transfers) {
      attempt(operation, transfer.peer, [&] {
        const bool is_complete = transfer.work->wait();
        TORCH_CHECK(is_complete, "interrupted");
      });
    }
  }

  // Issuing a transfer and waiting for it both fail once the connection is closed.
  template <typename Step>
  void attempt(const Operation& operation, int64_t peer, Step step) {
    try {
      step();
    } catch (const std::exception& error) {
      throw_lost(operation.name, "rank " + std::to_string(peer), error);
    }
  }

  // Transfers that fail() aborts.
  class InFlight {
   public:
    InFlight(GlooCollectives& collectives, int lane, std::initializer_list<const Transfers*> all)
        : collectives_(collectives), lane_(static_cast<size_t>(lane)) {
      std::lock_guard lock(collectives_.mu_);
      for (const Transfers* transfers : all) {
        for (const Transfer& transfer : *transfers) {
          collectives_.in_flight_[lane_].push_back(transfer.work);
        }
      }
      if (!collectives_.failure_.empty()) {
        collectives_.abort_transfers();
      }
    }
    ~InFlight() {
      std::lock_guard lock(collectives_.mu_);
      collectives_.in_flight_[lane_].clear();
    }
    InFlight(const InFlight&) = delete;
    InFlight& operator=(const InFlight&) = delete;

   private:
    GlooCollectives& collectives_;
    const size_t lane_;
  };

  // Ends this rank's operations on both lanes, those to come included; any thread. The first reason
  // stays.
  void fail(const std::string& reason) {
    std::lock_guard lock(mu_);
    if (failure_.empty()) {
      failure_ = reason;
    }
    abort_transfers();
  }

  void throw_if_failed() {
    std::lock_guard lock(mu_);
    TORCH_CHECK(failure_.empty(), failure_);
  }

  // With mu_ held.
  void abort_transfers() {
    for (const auto& works : in_flight_) {
      for (const auto& work : works) {
        work->abort();
      }
    }
  }

  const std::array<Group, 2> groups_;
  std::array<at::Tensor, 2> scratch_;         // each used by its lane's thread
  std::array<uint64_t, 2> sequence_ = {};     // each used by its lane's thread
  std::array<shm::Purpose, 2> purpose_ = {};  // each used by its lane's thread
  std::mutex mu_;
  std::string failure_;  // guarded by mu_, as is in_flight_
  std::array<std::vector<c10::intrusive_ptr<c10d::Work>>, 2> in_flight_;
};

}  // namespace

bool is_gloo_timeout(const std::string& reason) {
  // The second closes the connections of whoever gave up before. ETIMEDOUT, "Connection timed out",
  // is the kernel's word for a peer that does not answer any more.
  return reason.find("Timed out waiting") != std::string::npos ||
         reason.find("Application timeout") != std::string::npos;
}

std::optional<std::string> gloo_interface() {
  const char* name = std::getenv("GLOO_SOCKET_IFNAME");
  return name != nullptr && *name != '\0' ? std::optional<std::string>(name) : std::nullopt;
}

std::shared_ptr<Collectives> make_gloo_collectives(const std::shared_ptr<StoreClient>& store,
                                                   const std::string& prefix,
                                                   const std::string& address, int64_t rank,
                                                   int64_t size,
                                                   std::chrono::milliseconds timeout) {
  const SigpipeBlock no_sigpipe;  // Gloo's own threads are started here.
  std::array<Group, 2> groups;
  for (size_t lane = 0; lane < groups.size(); ++lane) {
    groups[lane] =
        make_group(store, prefix + "/gloo" + std::to_string(lane), address, rank, size, timeout);
  }
  return std::make_shared<GlooCollectives>(std::move(groups), rank, size);
}

}  // namespace fsdp
