#pragma once

#include <fsdp/export.h>

#include <memory>
#include <optional>
#include <string>

#include "fsdp_runtime/src/comm/formed_collectives.h"
#include "fsdp_runtime/src/comm/membership.h"
#include "fsdp_runtime/store/store_client.h"

namespace fsdp {

/// Collectives of CPU ranks on any hosts, over Gloo's TCP connections. Blocks until all ranks are
/// connected. Each rank listens on its own `address`, or on GLOO_SOCKET_IFNAME. The keys in the
/// store begin with the group's name.
std::shared_ptr<FormedCollectives> make_gloo_collectives(const std::shared_ptr<StoreClient>& store,
                                                         const std::string& address,
                                                         GroupPlace place);

/// Whether Gloo's error says that an operation took too long, not that the connection has ended.
FSDP_API bool is_gloo_timeout(const std::string& reason);

/// GLOO_SOCKET_IFNAME, if set.
std::optional<std::string> gloo_interface();

}  // namespace fsdp
