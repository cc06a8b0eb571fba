#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <string>

#include "fsdp_runtime/src/comm/membership.h"

namespace fsdp {

/// The collectives of one rank alone: synchronous copies on the current stream or thread. `place`:
/// in the world that it is a part of, if it is one; without a membership: it is a world itself.
FSDP_API std::shared_ptr<Collectives> make_single_collectives(std::string name,
                                                              c10::Device device = c10::kCPU,
                                                              GroupPlace place = {});

}  // namespace fsdp
