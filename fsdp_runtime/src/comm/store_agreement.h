#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <string>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// `inner` with agreements through the store, for a backend whose operations cannot be compared one
/// by one (NCCL). agree() fails on all ranks unless all have issued the same operations since the
/// last agreement, and names the first that differ, or the ranks that have not arrived within the
/// store's timeout. A mark is compared by the next agreement; waiting for one that none has
/// followed asks for it. Errors: c10::Error; PeerError if the store is lost, after one attempt on a
/// new connection.
///
/// Cost of an agreement: agree() sends one value; wait() is one round trip that ends when rank 0
/// has read the values of all ranks and stored its verdict, which takes rank 0 two round trips and
/// the store work in proportion to the ranks. Keys are removed once in many rounds, in one round
/// trip.
///
/// `store`: for this use only, because a read waits. `prefix`: of its keys, of which it leaves
/// those of a bounded number of rounds.
FSDP_API std::shared_ptr<Collectives> agree_through_store(std::shared_ptr<Collectives> inner,
                                                          std::shared_ptr<StoreClient> store,
                                                          std::string prefix);

}  // namespace fsdp
