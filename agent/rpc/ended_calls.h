#pragma once

#include <functional>
#include <memory>

namespace fsdprun {

/// Keeps a call that was cancelled until gRPC is done with it, but for whom nobody waits: gRPC may
/// take its time, as while this process is stopped, and a channel must not end on a thread of its
/// own. It is freed at a later call of this function, or not at all. Thread: any but gRPC's.
void KeepUntilDone(std::shared_ptr<void> call, std::function<bool()> is_done);

}  // namespace fsdprun
