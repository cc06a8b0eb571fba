#pragma once

#include <memory>

#include "fsdp_runtime/shm/group.h"
#include "fsdp_runtime/src/comm/formed_collectives.h"
#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// Collectives of CPU ranks on one host through shared memory. The world's ranks are processes or
/// threads.
std::shared_ptr<FormedCollectives> make_shm_collectives(std::shared_ptr<shm::World> world,
                                                        GroupPlace place);

}  // namespace fsdp
