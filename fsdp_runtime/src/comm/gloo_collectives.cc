#include "fsdp_runtime/src/comm/gloo_collectives.h"

#include <ATen/ops/empty.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

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
        lane, "all_gather", [&](int64_t) { return own; },
        [&](int64_t peer) { return out.narrow(0, peer * n, n); });
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
        lane, "reduce_scatter", [&](int64_t peer) { return in.narrow(0, peer * n, n); },
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
    const uint64_t sequence = ++sequence_[static_cast<size_t>(lane)];
    try {
      groups_[static_cast<size_t>(lane)]->broadcast(tensors, options)->wait();
    } catch (const std::exception& error) {
      throw_lost(lane, "broadcast", sequence, "a rank", error);
    }
  }

  void do_barrier(int lane) override {
    const uint64_t sequence = ++sequence_[static_cast<size_t>(lane)];
    try {
      groups_[static_cast<size_t>(lane)]->barrier()->wait();
    } catch (const std::exception& error) {
      throw_lost(lane, "barrier", sequence, "a rank", error);
    }
  }

  // Gloo cannot cancel an operation; each ends at its timeout.
  void interrupt() override {}

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
        lane, "all_reduce", [&](int64_t) { return own; },
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

  // After a timeout of the operation the peer may be late, or may never have issued it. Anything
  // else means that the connection has ended and the peer is gone.
  [[noreturn]] void throw_lost(int lane, const char* operation, uint64_t sequence,
                               const std::string& peer, const std::exception& error) const {
    const std::string reason = error.what();
    const bool is_late = is_gloo_timeout(reason);
    const std::string what =
        c10::str(operation, " #", sequence, " on lane ", lane, ": rank ", rank(),
                 is_late ? " gave up on " : " lost ", peer, ": ", reason);
    TORCH_CHECK(!is_late, what);
    throw PeerError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, what);
  }

  // Sends outgoing(peer) to and receives incoming(peer) from every peer at once.
  template <typename Outgoing, typename Incoming>
  void exchange(int lane, const char* operation, Outgoing outgoing, Incoming incoming) {
    const Group& group = groups_[static_cast<size_t>(lane)];
    const uint64_t sequence = ++sequence_[static_cast<size_t>(lane)];
    struct Transfer {
      int64_t peer;
      std::vector<at::Tensor> tensors;
      c10::intrusive_ptr<c10d::Work> work;
    };
    // Issuing a transfer and waiting for it both fail once the connection is closed.
    const auto attempt = [&](int64_t peer, const auto& step) {
      try {
        step();
      } catch (const std::exception& error) {
        throw_lost(lane, operation, sequence, "rank " + std::to_string(peer), error);
      }
    };
    std::vector<Transfer> transfers;
    for (const bool is_send : {false, true}) {
      for (int64_t step = 1; step < size(); ++step) {
        const int64_t peer = (rank() + step) % size();
        Transfer transfer{peer, {is_send ? outgoing(peer) : incoming(peer)}, nullptr};
        // Messages between two ranks arrive in order, so one tag serves all.
        attempt(peer, [&] {
          transfer.work = is_send ? group->send(transfer.tensors, static_cast<int>(peer), 0)
                                  : group->recv(transfer.tensors, static_cast<int>(peer), 0);
        });
        transfers.push_back(std::move(transfer));
      }
    }
    for (const Transfer& transfer : transfers) {
      attempt(transfer.peer, [&] { transfer.work->wait(); });
    }
  }

  const std::array<Group, 2> groups_;
  std::array<at::Tensor, 2> scratch_;      // each used by its lane's thread
  std::array<uint64_t, 2> sequence_ = {};  // each used by its lane's thread
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
