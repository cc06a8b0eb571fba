#pragma once

#include <fsdp/collectives.h>
#include <fsdp/export.h>

#include <chrono>
#include <memory>
#include <vector>

namespace fsdp {

/// A process group whose ranks are threads of this process: element r is rank r's view, to be used
/// by one thread. For tests and for experiments without a launcher; the transport is the
/// shared-memory one. `size` 1 needs no thread.
FSDP_API std::vector<std::shared_ptr<Collectives>> make_local_world(
    int64_t size, std::chrono::milliseconds timeout = std::chrono::seconds(60));

}  // namespace fsdp
