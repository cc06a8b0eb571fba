#pragma once

// Between LibTorch and NCCL: this program's own definitions of NCCL's functions, which the dynamic
// linker takes first, count the calls and hand them on.

#include <cstdint>

namespace fsdp::gpu {

/// How often NCCL's functions have been called in this process.
struct NcclCalls {
  int64_t all_gathers = 0;
  int64_t reduce_scatters = 0;
  int64_t all_reduces = 0;
  int64_t broadcasts = 0;
  int64_t communicators = 0;  ///< made
};

/// Thread: any.
NcclCalls nccl_calls();

/// From now on this process never gets further than to the beginning of ncclCommInitRankConfig(),
/// as one that hangs: for the peers it never joins. For a process that will be killed.
void hang_in_communicator_init();

/// While it lives, ncclAllGather() puts an operation on its stream that does not end, as if a peer
/// never joined it. The destructor lets all of them end. One at a time.
class EndlessAllGathers {
 public:
  EndlessAllGathers();
  ~EndlessAllGathers();
  EndlessAllGathers(const EndlessAllGathers&) = delete;
  EndlessAllGathers& operator=(const EndlessAllGathers&) = delete;
};

}  // namespace fsdp::gpu
