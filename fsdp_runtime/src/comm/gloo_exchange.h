#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <vector>

#include "fsdp_runtime/shm/descriptor.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// Messages between the ranks of a group by Gloo, of operations that all of them tell each other
/// first. Calls of one lane come from its thread; interrupt(): any thread. Errors: c10::Error
/// naming the ranks that differ, or the peer that is late; PeerError if it is gone.
class GlooExchange {
 public:
  using Group = c10::intrusive_ptr<c10d::ProcessGroupGloo>;
  using OfPeer = std::function<at::Tensor(int64_t peer)>;

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

  /// `groups`: of the lanes. `place` must outlive this.
  GlooExchange(std::array<Group, 2> groups, const GroupPlace& place)
      : groups_(std::move(groups)), place_(place) {}

  /// What the next operation of the lane is for.
  void set_purpose(int lane, const std::string& purpose) {
    purpose_[static_cast<size_t>(lane)] = shm::purpose_of(purpose);
  }
  /// Returns when all ranks have begun the operation.
  std::unique_ptr<Operation> begin(int lane, const shm::Descriptor& own);
  /// Sends `data` to, or receives it from, some ranks, and waits for that.
  void pass(const Operation& operation, bool is_send, const std::vector<int64_t>& peers,
            const at::Tensor& data);
  /// Sends outgoing(peer) to and receives incoming(peer) from every peer at once, while the
  /// descriptors are still under way.
  void exchange(int lane, const shm::Descriptor& own, const OfPeer& outgoing,
                const OfPeer& incoming);
  /// Ends what is in flight. What begins later ends at once if the groups have failed.
  void interrupt();

 private:
  class InFlight;

  int64_t rank() const { return place_.rank; }
  int64_t size() const { return place_.size; }
  std::string called(int64_t rank) const {
    return "rank " + std::to_string(place_.world_rank(rank));
  }
  std::unique_ptr<Operation> announce(int lane, shm::Descriptor own);
  void check_in_step(const Operation& operation);
  Transfers issue(const Operation& operation, int tag, const OfPeer& outgoing,
                  const OfPeer& incoming);
  Transfer start_transfer(const Operation& operation, bool is_send, int64_t peer, at::Tensor data,
                          int tag);
  void finish(const Operation& operation, const Transfers& transfers);
  void attempt(const Operation& operation, int64_t peer, const std::function<void()>& step);
  [[noreturn]] void throw_lost(const std::string& operation, std::optional<int64_t> peer,
                               const std::exception& error);
  void abort_transfers();  // with mu_ held

  const std::array<Group, 2> groups_;
  const GroupPlace& place_;
  std::array<uint64_t, 2> sequence_ = {};     // each used by its lane's thread
  std::array<shm::Purpose, 2> purpose_ = {};  // each used by its lane's thread
  std::mutex mu_;
  std::array<std::vector<c10::intrusive_ptr<c10d::Work>>, 2> in_flight_;  // guarded by mu_
};

}  // namespace fsdp
