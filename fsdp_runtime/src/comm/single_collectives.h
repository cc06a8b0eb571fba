#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <memory>
#include <string>

namespace fsdp {

/// The collectives of a world of one: synchronous copies on the current stream or thread.
FSDP_API std::shared_ptr<Collectives> make_single_collectives(std::string name,
                                                              c10::Device device = c10::kCPU);

}  // namespace fsdp
