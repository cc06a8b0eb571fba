#include "fsdp_runtime/src/comm/gloo_collectives.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/shm/reduce.h"
#include "fsdp_runtime/src/comm/c10d_store.h"
#include "fsdp_runtime/src/comm/gloo_exchange.h"
#include "fsdp_runtime/src/comm/group_error.h"
#include "fsdp_runtime/src/comm/host_collectives.h"
#include "fsdp_runtime/src/comm/sigpipe_block.h"

namespace fsdp {
namespace {

using Group = GlooExchange::Group;

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

// Gloo's own reduce-scatter is an all-reduce of the whole input. Here every pair of ranks exchanges
// only what the other needs, without copies, and sums in rank order: half the traffic, and the same
// bits in every run. At two ranks the result is bit-equal to Gloo's.
class GlooCollectives : public HostCollectives {
 public:
  GlooCollectives(std::array<Group, 2> groups, GroupPlace own)
      : HostCollectives(std::move(own)), exchange_(std::move(groups), place()) {
    start();
  }
  ~GlooCollectives() override { stop(); }

  std::string name() const override { return "gloo"; }

 protected:
  void do_all_gather(int lane, at::Tensor& output, at::Tensor& input) override {
    at::Tensor out = bytes_of(output);
    at::Tensor own = bytes_of(input);
    const int64_t n = own.numel();
    exchange_.exchange(
        lane, {.kind = shm::Kind::kAllGather, .numel = static_cast<uint64_t>(n)},
        [&](int64_t) { return own; }, [&](int64_t peer) { return out.narrow(0, peer * n, n); });
    char* target = static_cast<char*>(out.data_ptr()) + rank() * n;
    if (n > 0 && target != own.data_ptr()) {
      std::memcpy(target, own.data_ptr(), static_cast<size_t>(n));
    }
  }

  void do_reduce_scatter(int lane, at::Tensor& output, at::Tensor& input, ReduceOp op,
                         shm::Result result) override {
    at::Tensor in = bytes_of(input);
    const auto n = static_cast<int64_t>(output.nbytes());
    at::Tensor received = scratch(lane, n * size());
    exchange_.exchange(
        lane, reduction(shm::Kind::kReduceScatter, output, op),
        [&](int64_t peer) { return in.narrow(0, peer * n, n); },
        [&](int64_t peer) { return received.narrow(0, peer * n, n); });
    const auto* own = static_cast<const char*>(in.data_ptr()) + rank() * n;
    reduce_received(output, own, received, op, result);
  }

  void do_all_reduce(int lane, at::Tensor& tensor, ReduceOp op) override {
    at::Tensor flat = tensor.view({-1});
    const int64_t share = flat.numel() / size();
    if (tensor.nbytes() <= kAllReduceOneShotBytes || share == 0) {
      return all_reduce_at_once(lane, flat, op);
    }
    at::Tensor even = flat.narrow(0, 0, share * size());
    at::Tensor own = flat.narrow(0, rank() * share, share);
    do_reduce_scatter(lane, own, even, op, shm::Result::kStored);
    do_all_gather(lane, even, own);
    if (flat.numel() > share * size()) {
      at::Tensor rest = flat.narrow(0, share * size(), flat.numel() - share * size());
      all_reduce_at_once(lane, rest, op);
    }
  }

  // Down a binomial tree: whoever has the data passes it on. Not Gloo's own broadcast, which cannot
  // be interrupted: ranks behind one that has failed, and lives, would wait for their timeout.
  void do_broadcast(int lane, at::Tensor& tensor, int64_t root) override {
    at::Tensor data = bytes_of(tensor);
    const auto operation = exchange_.begin(lane, {.kind = shm::Kind::kBroadcast,
                                                  .root = static_cast<int32_t>(root),
                                                  .numel = static_cast<uint64_t>(data.numel())});
    const int64_t own = (rank() - root + size()) % size();  // the root is 0
    const auto rank_of = [&](int64_t place) { return (place + root) % size(); };
    int64_t distance = 1;
    while (distance < size() && (own & distance) == 0) {
      distance *= 2;
    }
    if (own != 0) {
      exchange_.pass(*operation, /*is_send=*/false, {rank_of(own - distance)}, data);
    }
    std::vector<int64_t> children;
    for (distance /= 2; distance > 0; distance /= 2) {
      if (own + distance < size()) {
        children.push_back(rank_of(own + distance));
      }
    }
    exchange_.pass(*operation, /*is_send=*/true, children, data);
  }

  // Complete once every rank has told that it has begun.
  void do_barrier(int lane) override { exchange_.begin(lane, {.kind = shm::Kind::kBarrier}); }

  void set_purpose(int lane, const std::string& purpose) override {
    exchange_.set_purpose(lane, purpose);
  }

  void interrupt(const GroupFailure&) override { exchange_.interrupt(); }

 private:
  static at::Tensor bytes_of(const at::Tensor& tensor) { return tensor.view({-1}).view(at::kByte); }

  /// Errors: the allocator's; peers get a PeerError that names this rank, so that none of them
  /// takes the want of memory for its own.
  at::Tensor scratch(int lane, int64_t bytes) {
    at::Tensor& kept = scratch_[static_cast<size_t>(lane)];
    if (kept.defined() && kept.numel() >= bytes) {
      return kept;
    }
    try {
      kept = at::empty({bytes}, at::kByte);
    } catch (...) {
      const int64_t own = place().world_rank(rank());
      place().membership->revoke({"rank " + std::to_string(own) +
                                      " has no memory for what it receives in a reduction: " +
                                      failure_of_current_exception().reason,
                                  own});
      throw;
    }
    return kept;
  }

  void all_reduce_at_once(int lane, at::Tensor& tensor, ReduceOp op) {
    at::Tensor own = bytes_of(tensor);
    const int64_t n = own.numel();
    at::Tensor received = scratch(lane, n * size());
    exchange_.exchange(
        lane, reduction(shm::Kind::kAllReduce, tensor, op), [&](int64_t) { return own; },
        [&](int64_t peer) { return received.narrow(0, peer * n, n); });
    reduce_received(tensor, own.data_ptr(), received, op, shm::Result::kStored);
  }

  void reduce_received(at::Tensor& output, const void* own, const at::Tensor& received, ReduceOp op,
                       shm::Result result) {
    std::vector<const void*> sources;
    for (int64_t peer = 0; peer < size(); ++peer) {
      const auto* slot = static_cast<const char*>(received.data_ptr()) +
                         static_cast<size_t>(peer) * output.nbytes();
      sources.push_back(peer == rank() ? own : slot);
    }
    shm::reduce_ordered(output.data_ptr(), sources.data(), sources.size(),
                        static_cast<size_t>(output.numel()), reduction_dtype(output),
                        transport_op(op), result);
  }

  static shm::Descriptor reduction(shm::Kind kind, const at::Tensor& output, ReduceOp op) {
    return {.kind = kind,
            .dtype = reduction_dtype(output),
            .op = transport_op(op),
            .numel = static_cast<uint64_t>(output.numel())};
  }

  GlooExchange exchange_;
  std::array<at::Tensor, 2> scratch_;  // each used by its lane's thread
};

}  // namespace

std::optional<std::string> gloo_interface() {
  const char* name = std::getenv("GLOO_SOCKET_IFNAME");
  return name != nullptr && *name != '\0' ? std::optional<std::string>(name) : std::nullopt;
}

std::shared_ptr<FormedCollectives> make_gloo_collectives(const std::shared_ptr<StoreClient>& store,
                                                         const std::string& address,
                                                         GroupPlace place) {
  const SigpipeBlock no_sigpipe;  // Gloo's own threads are started here.
  std::array<Group, 2> groups;
  for (size_t lane = 0; lane < groups.size(); ++lane) {
    groups[lane] = make_group(store, place.name + "/gloo" + std::to_string(lane), address,
                              place.rank, place.size, place.timeout);
  }
  return std::make_shared<GlooCollectives>(std::move(groups), std::move(place));
}

}  // namespace fsdp
