#pragma once

namespace fsdprun {

/// Begins gRPC, if this process has not yet; it goes on until the process ends. To be called before
/// a channel or a server is made: gRPC would otherwise end with the last of them, and it aborts
/// where that happens on a thread of its own, or where the next one is made while connections are
/// still being closed. Any thread.
void BeginGrpc();

}  // namespace fsdprun
