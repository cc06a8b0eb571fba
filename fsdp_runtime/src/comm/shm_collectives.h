#pragma once

#include <fsdp/collectives.h>

#include <chrono>
#include <memory>

#include "fsdp_runtime/shm/group.h"

namespace fsdp {

/// Collectives of CPU ranks on one host through shared memory. The world's ranks are processes or
/// threads.
std::shared_ptr<Collectives> make_shm_collectives(std::shared_ptr<shm::World> world, int64_t rank,
                                                  std::chrono::milliseconds timeout);

}  // namespace fsdp
