#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fsdp_runtime/src/comm/formed_collectives.h"
#include "fsdp_runtime/src/comm/membership.h"
#include "fsdp_runtime/src/comm/sequence_recorder.h"
#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

struct AgreementOptions {
  std::vector<int64_t> names = {};  // what errors call the ranks; empty: by their numbers
  /// Before ranks compare what they have issued although none of them comes to an agreement. Unset:
  /// by the store's timeout.
  std::optional<SequenceRecorder::Patience> patience = {};
  /// Whose failure ends agreements. May be null.
  std::shared_ptr<Membership> membership = {};
  /// What the members call the group, of which one may leave.
  std::string group = {};
  /// What a rank that leaves has taken part in ends within this time.
  std::chrono::milliseconds departure = Membership::kWordMax;
};

/// `inner` with agreements through the store, for a backend whose operations cannot be compared one
/// by one (NCCL). agree() fails on all ranks unless all have issued the same operations since the
/// last agreement, and names the first that differ, or the ranks that have not arrived within the
/// store's timeout. A mark is compared by the next agreement; waiting for one that none has
/// followed asks for it. Ranks that wait for each other before they come to one are compared by a
/// thread, and `inner` is aborted with what differs. `inner` is told what operations are for, as
/// its errors name that. Errors: c10::Error; PeerError if the store is lost, after one attempt on a
/// new connection.
///
/// Cost of an agreement: agree() sends one value; wait() is one round trip that ends when rank 0
/// has read the values of all ranks and stored its verdict, which takes rank 0 two round trips and
/// the store work in proportion to the ranks. Keys are removed once in many rounds, in one round
/// trip.
///
/// `store`: for this use only, because a read waits; the thread has a connection of its own.
/// `prefix`: of its keys, of which it leaves those of a bounded number of rounds.
FSDP_API std::shared_ptr<FormedCollectives> agree_through_store(
    std::shared_ptr<Collectives> inner, std::shared_ptr<StoreClient> store, std::string prefix,
    const AgreementOptions& options = {});

}  // namespace fsdp
