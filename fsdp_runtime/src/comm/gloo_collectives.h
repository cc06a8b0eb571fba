#pragma once

#include <fsdp/collectives.h>

#include <chrono>
#include <memory>
#include <string>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Collectives of CPU ranks on any hosts, over Gloo's TCP connections. Blocks until all ranks are
/// connected. Connections go over the interface that leads to the store, or over
/// GLOO_SOCKET_IFNAME.
std::shared_ptr<Collectives> make_gloo_collectives(const std::shared_ptr<StoreClient>& store,
                                                   const std::string& prefix, int64_t rank,
                                                   int64_t size, std::chrono::milliseconds timeout);

}  // namespace fsdp
