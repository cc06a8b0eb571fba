#include "fsdp_runtime/src/comm/gloo_exchange.h"

#include <ATen/ops/from_blob.h>
#include <c10/util/Exception.h>
#include <fsdp/collectives.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "fsdp_runtime/plan/fnv1a.h"
#include "fsdp_runtime/src/comm/gloo_collectives.h"

namespace fsdp {
namespace {

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

}  // namespace

bool is_gloo_timeout(const std::string& reason) {
  // The second closes the connections of whoever gave up before. ETIMEDOUT, "Connection timed out",
  // is the kernel's word for a peer that does not answer any more.
  return reason.find("Timed out waiting") != std::string::npos ||
         reason.find("Application timeout") != std::string::npos;
}

// Transfers that interrupt() aborts.
class GlooExchange::InFlight {
 public:
  InFlight(GlooExchange& exchange, int lane, std::initializer_list<const Transfers*> all)
      : exchange_(exchange), lane_(static_cast<size_t>(lane)) {
    std::lock_guard lock(exchange_.mu_);
    for (const Transfers* transfers : all) {
      for (const Transfer& transfer : *transfers) {
        exchange_.in_flight_[lane_].push_back(transfer.work);
      }
    }
    if (exchange_.place_.membership->failure()) {
      exchange_.abort_transfers();
    }
  }
  ~InFlight() {
    std::lock_guard lock(exchange_.mu_);
    exchange_.in_flight_[lane_].clear();
  }
  InFlight(const InFlight&) = delete;
  InFlight& operator=(const InFlight&) = delete;

 private:
  GlooExchange& exchange_;
  const size_t lane_;
};

void GlooExchange::interrupt() {
  std::lock_guard lock(mu_);
  abort_transfers();
}

void GlooExchange::abort_transfers() {
  for (const auto& works : in_flight_) {
    for (const auto& work : works) {
      work->abort();
    }
  }
}

// After a timeout of the operation the peer may be late, or may never have issued it. Anything
// else means that the connection has ended and the peer is gone: that it has closed it does not
// say why, but it has told that to this rank first.
void GlooExchange::throw_lost(const std::string& operation, std::optional<int64_t> peer,
                              const std::exception& error) {
  const std::string reason = error.what();
  const std::optional<GroupFailure> known = place_.membership->failure();
  TORCH_CHECK(known || !is_gloo_timeout(reason), operation, ": ", called(rank()), " gave up on ",
              peer ? called(*peer) : "a rank", ": ", reason);
  const std::optional<int64_t> suspect =
      peer ? std::optional<int64_t>(place_.world_rank(*peer)) : std::nullopt;
  const GroupFailure why = known ? *known : place_.membership->explain_loss(suspect, place_.name);
  TORCH_CHECK(why.lost_rank.has_value(), operation, ": ", why.reason);
  PeerError lost({__func__, __FILE__, static_cast<uint32_t>(__LINE__)},
                 c10::str(operation, ": ", why.reason, " (", reason, ")"));
  lost.rank = why.lost_rank;
  throw lost;
}

// Gloo does not know what a message is for, and one that is larger than expected ends the
// process. So all ranks tell each other what they are about to do.
std::unique_ptr<GlooExchange::Operation> GlooExchange::announce(int lane, shm::Descriptor own) {
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

void GlooExchange::check_in_step(const Operation& operation) {
  finish(operation, operation.transfers);
  const bool is_in_step = std::all_of(
      operation.issued.begin(), operation.issued.end(),
      [&](const shm::Descriptor& other) { return shm::is_same_operation(other, operation.own); });
  if (!is_in_step) {
    TORCH_CHECK(false, shm::describe_out_of_step(operation.issued, operation.lane,
                                                 operation.sequence, place_.world_ranks));
  }
}

std::unique_ptr<GlooExchange::Operation> GlooExchange::begin(int lane, const shm::Descriptor& own) {
  auto operation = announce(lane, own);
  const InFlight in_flight(*this, lane, {&operation->transfers});
  check_in_step(*operation);
  return operation;
}

void GlooExchange::pass(const Operation& operation, bool is_send, const std::vector<int64_t>& peers,
                        const at::Tensor& data) {
  Transfers transfers;
  for (const int64_t peer : peers) {
    transfers.push_back(start_transfer(operation, is_send, peer, data, data_tag(operation.own)));
  }
  const InFlight in_flight(*this, operation.lane, {&transfers});
  finish(operation, transfers);
}

void GlooExchange::exchange(int lane, const shm::Descriptor& own, const OfPeer& outgoing,
                            const OfPeer& incoming) {
  const auto operation = announce(lane, own);
  const Transfers data = issue(*operation, data_tag(operation->own), outgoing, incoming);
  const InFlight in_flight(*this, lane, {&operation->transfers, &data});
  check_in_step(*operation);
  finish(*operation, data);
}

GlooExchange::Transfers GlooExchange::issue(const Operation& operation, int tag,
                                            const OfPeer& outgoing, const OfPeer& incoming) {
  Transfers transfers;
  for (const bool is_send : {false, true}) {
    for (int64_t step = 1; step < size(); ++step) {
      const int64_t peer = (rank() + step) % size();
      transfers.push_back(
          start_transfer(operation, is_send, peer, is_send ? outgoing(peer) : incoming(peer), tag));
    }
  }
  return transfers;
}

GlooExchange::Transfer GlooExchange::start_transfer(const Operation& operation, bool is_send,
                                                    int64_t peer, at::Tensor data, int tag) {
  const Group& group = groups_[static_cast<size_t>(operation.lane)];
  Transfer transfer{peer, {std::move(data)}, nullptr};
  attempt(operation, peer, [&] {
    transfer.work = is_send ? group->send(transfer.tensors, static_cast<int>(peer), tag)
                            : group->recv(transfer.tensors, static_cast<int>(peer), tag);
  });
  return transfer;
}

void GlooExchange::finish(const Operation& operation, const Transfers& transfers) {
  for (const Transfer& transfer : transfers) {
    attempt(operation, transfer.peer, [&] {
      const bool is_complete = transfer.work->wait();
      TORCH_CHECK(is_complete, "interrupted");
    });
  }
}

// Issuing a transfer and waiting for it both fail once the connection is closed.
void GlooExchange::attempt(const Operation& operation, int64_t peer,
                           const std::function<void()>& step) {
  try {
    step();
  } catch (const std::exception& error) {
    throw_lost(operation.name, peer, error);
  }
}

}  // namespace fsdp
