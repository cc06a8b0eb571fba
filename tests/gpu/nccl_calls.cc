#include "tests/gpu/nccl_calls.h"

#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace fsdp::gpu {
namespace {

std::atomic<int64_t> all_gathers, reduce_scatters, all_reduces, broadcasts, communicators;
std::atomic<bool> hangs_in_init;

/// What holds operations on streams up.
struct Gate {
  std::mutex mutex;
  std::condition_variable opened;
  bool is_closed = false;
};

// Host functions that wait for it may outlive main().
Gate& gate() {
  static Gate* const the_gate = new Gate;
  return *the_gate;
}

void wait_for_gate(void*) {
  std::unique_lock lock(gate().mutex);
  gate().opened.wait(lock, [] { return !gate().is_closed; });
}

bool is_gate_closed() {
  std::lock_guard lock(gate().mutex);
  return gate().is_closed;
}

/// The next definition behind this program's, of a library that is loaded by now.
template <typename Function>
Function next_of(const char* name) {
  void* found = ::dlsym(RTLD_NEXT, name);
  if (found == nullptr) {  // loaded by dlopen, and so behind nothing
    void* const library = ::dlopen("libnccl.so.2", RTLD_LAZY | RTLD_NOLOAD);
    found = library == nullptr ? nullptr : ::dlsym(library, name);
  }
  if (found == nullptr) {
    std::fprintf(stderr, "%s: no library that is loaded defines it\n", name);
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

/// A host function on the stream, which ends when the gate opens. CUDA's runtime is loaded with
/// LibTorch, and not linked.
ncclResult_t launch_wait(cudaStream_t stream) {
  static const auto launch = reinterpret_cast<decltype(&::cudaLaunchHostFunc)>(
      ::dlsym(RTLD_DEFAULT, "cudaLaunchHostFunc"));
  const bool is_launched =
      launch != nullptr && launch(stream, &wait_for_gate, nullptr) == cudaSuccess;
  return is_launched ? ncclSuccess : ncclUnhandledCudaError;
}

}  // namespace

NcclCalls nccl_calls() {
  return {all_gathers, reduce_scatters, all_reduces, broadcasts, communicators};
}

void hang_in_communicator_init() { hangs_in_init = true; }

EndlessAllGathers::EndlessAllGathers() {
  std::lock_guard lock(gate().mutex);
  gate().is_closed = true;
}

EndlessAllGathers::~EndlessAllGathers() {
  {
    std::lock_guard lock(gate().mutex);
    gate().is_closed = false;
  }
  gate().opened.notify_all();
}

}  // namespace fsdp::gpu

using namespace fsdp::gpu;  // NOLINT(google-build-using-namespace): definitions of C below

extern "C" ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                               int rank, ncclConfig_t* config) {
  while (hangs_in_init) {
    ::pause();
  }
  ++communicators;
  static const auto next = next_of<decltype(&::ncclCommInitRankConfig)>("ncclCommInitRankConfig");
  return next(comm, ranks, id, rank, config);
}

extern "C" ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t type,
                                      ncclComm_t comm, cudaStream_t stream) {
  ++all_gathers;
  if (is_gate_closed()) {
    return launch_wait(stream);
  }
  static const auto next = next_of<decltype(&::ncclAllGather)>("ncclAllGather");
  return next(from, to, count, type, comm, stream);
}

extern "C" ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count,
                                          ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                          cudaStream_t stream) {
  ++reduce_scatters;
  static const auto next = next_of<decltype(&::ncclReduceScatter)>("ncclReduceScatter");
  return next(from, to, count, type, op, comm, stream);
}

extern "C" ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t type,
                                      ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  ++all_reduces;
  static const auto next = next_of<decltype(&::ncclAllReduce)>("ncclAllReduce");
  return next(from, to, count, type, op, comm, stream);
}

extern "C" ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t type,
                                      int root, ncclComm_t comm, cudaStream_t stream) {
  ++broadcasts;
  static const auto next = next_of<decltype(&::ncclBroadcast)>("ncclBroadcast");
  return next(from, to, count, type, root, comm, stream);
}

/// The older name, in place. Not counted: NCCL's own calls ncclBroadcast, which is the one above.
extern "C" ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t type, int root,
                                  ncclComm_t comm, cudaStream_t stream) {
  static const auto next = next_of<decltype(&::ncclBcast)>("ncclBcast");
  return next(data, count, type, root, comm, stream);
}
