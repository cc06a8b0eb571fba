#pragma once

#include <fsdp/collectives.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Collectives of CPU ranks on any hosts, over Gloo's TCP connections. Blocks until all ranks are
/// connected. Each rank listens on its own `address`, or on GLOO_SOCKET_IFNAME.
std::shared_ptr<Collectives> make_gloo_collectives(const std::shared_ptr<StoreClient>& store,
                                                   const std::string& prefix,
                                                   const std::string& address, int64_t rank,
                                                   int64_t size, std::chrono::milliseconds timeout);

/// Whether Gloo's error says that an operation took too long, not that the connection has ended.
FSDP_API bool is_gloo_timeout(const std::string& reason);

/// GLOO_SOCKET_IFNAME, if set.
std::optional<std::string> gloo_interface();

}  // namespace fsdp
