#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <string>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// `inner` with agreements through the store, for a backend whose operations cannot be compared one
/// by one (NCCL). agree() fails on all ranks unless all have issued the same operations since the
/// last agreement, and names the first that differ. Costs one write and one read of the store for
/// each agreement; rank 0 reads what all ranks have written. `store`: for this use only, because a
/// read waits. `prefix`: of its keys, of which it removes those no longer needed.
FSDP_API std::shared_ptr<Collectives> agree_through_store(std::shared_ptr<Collectives> inner,
                                                          std::shared_ptr<StoreClient> store,
                                                          std::string prefix);

}  // namespace fsdp
