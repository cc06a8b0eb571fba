// NCCL's functions that LibTorch and libfsdp_nccl call. Others are libnccl's, which finds no
// device.

#include <nccl.h>

#include <cstring>
#include <string>

#include "tests/unit/fsdp_runtime/nccl/fake_cuda.h"
#include "tests/unit/fsdp_runtime/nccl/fake_nccl.h"

using fsdp::testing::FakeCuda;
using fsdp::testing::FakeNccl;

namespace {

thread_local int groups_begun = 0;

FakeNccl::Communicator& of(ncclComm_t handle) {
  return *reinterpret_cast<FakeNccl::Communicator*>(handle);
}

/// A call that is about a communicator.
void write(ncclComm_t handle, const std::string& call) {
  FakeCuda::get().write(of(handle).device, call);
}
void write(const std::string& call) { FakeCuda::get().write(FakeCuda::device(), call); }

std::string name(ncclComm_t handle) { return "communicator " + std::to_string(of(handle).number); }

std::string name(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat32:
      return "float32";
    case ncclFloat16:
      return "float16";
    case ncclBfloat16:
      return "bfloat16";
    case ncclFloat64:
      return "float64";
    case ncclInt64:
      return "int64";
    case ncclUint8:
      return "uint8";
    default:
      return "dtype " + std::to_string(dtype);
  }
}

size_t bytes_of(ncclDataType_t dtype) {
  switch (dtype) {
    case ncclFloat64:
    case ncclInt64:
    case ncclUint64:
      return 8;
    case ncclFloat32:
    case ncclInt32:
    case ncclUint32:
      return 4;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    default:
      return 1;
  }
}

std::string name(ncclRedOp_t op) {
  switch (op) {
    case ncclSum:
      return "sum";
    case ncclAvg:
      return "average";
    case ncclMax:
      return "maximum";
    default:
      return "reduction " + std::to_string(op);
  }
}

std::string place(int rank, int size) {
  return "rank " + std::to_string(rank) + " of " + std::to_string(size);
}

ncclResult_t form(ncclComm_t* comm, int size, int rank) {
  auto* made = FakeNccl::get().make(rank, size);
  *comm = reinterpret_cast<ncclComm_t>(made);
  write(*comm, "init " + name(*comm) + ": " + place(rank, size));
  FakeNccl::get().wait_for_forming();
  return ncclSuccess;
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  *id = {};
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t error) {
  return error == ncclRemoteError ? "the double's network error" : "an error of the double";
}
const char* ncclGetLastError(ncclComm_t) { return "the double's last error"; }

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId, int rank,
                                    ncclConfig_t*) {
  return form(comm, size, rank);
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId, int rank) {
  return form(comm, size, rank);
}
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int size, int rank, int, ncclUniqueId*,
                                      ncclConfig_t*) {
  return form(comm, size, rank);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* part, ncclConfig_t*) {
  if (color == NCCL_SPLIT_NOCOLOR) {
    write(comm, "split " + name(comm) + ": no part");
    *part = nullptr;
    return ncclSuccess;
  }
  const int size = FakeNccl::get().size_of_part(of(comm));
  *part = reinterpret_cast<ncclComm_t>(FakeNccl::get().make(key, size));
  write(comm, "split " + name(comm) + ": color " + std::to_string(color) + ", key " +
                  std::to_string(key) + ", " + name(*part) + " of " + std::to_string(size));
  FakeNccl::get().wait_for_forming();
  return ncclSuccess;
}
ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  *count = of(comm).size;
  return ncclSuccess;
}
ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  *rank = of(comm).rank;
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  *error = FakeNccl::get().asynchronous_error(of(comm));
  return ncclSuccess;
}

ncclResult_t ncclCommRevoke(ncclComm_t comm, int) {
  write(comm, "revoke " + name(comm));
  FakeNccl::get().revoke(of(comm));
  if (groups_begun == 0 && FakeNccl::get().is_held_up_by_another(of(comm))) {
    write(comm, "the revocation of " + name(comm) + " waits for another's kernel");
  }
  return ncclSuccess;
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  write(comm, "finalize " + name(comm));
  return ncclSuccess;
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  write(comm, "destroy " + name(comm));
  FakeNccl::get().free(&of(comm));
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  write(comm, "abort " + name(comm));
  FakeNccl::get().free(&of(comm));
  return ncclSuccess;
}

ncclResult_t ncclGroupStart() {
  ++groups_begun;
  write("group start");
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  --groups_begun;
  write("group end");
  return ncclSuccess;
}

ncclResult_t ncclAllGather(const void* from, void* to, size_t count, ncclDataType_t dtype,
                           ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(dtype);
  std::memmove(static_cast<char*>(to) + static_cast<size_t>(of(comm).rank) * bytes, from, bytes);
  if (dtype == ncclInt64) {
    FakeNccl::get().gather_integers(to, count * static_cast<size_t>(of(comm).size));
  }
  return FakeNccl::get().launch(
      of(comm), "all_gather " + std::to_string(count) + " of " + name(dtype), stream);
}
ncclResult_t ncclReduceScatter(const void* from, void* to, size_t count, ncclDataType_t dtype,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  const size_t bytes = count * bytes_of(dtype);
  std::memmove(to, static_cast<const char*>(from) + static_cast<size_t>(of(comm).rank) * bytes,
               bytes);
  return FakeNccl::get().launch(
      of(comm), "reduce_scatter " + std::to_string(count) + " of " + name(dtype) + ", " + name(op),
      stream);
}
ncclResult_t ncclAllReduce(const void* from, void* to, size_t count, ncclDataType_t dtype,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  std::memmove(to, from, count * bytes_of(dtype));
  return FakeNccl::get().launch(
      of(comm), "all_reduce " + std::to_string(count) + " of " + name(dtype) + ", " + name(op),
      stream);
}
ncclResult_t ncclBroadcast(const void* from, void* to, size_t count, ncclDataType_t dtype, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  std::memmove(to, from, count * bytes_of(dtype));
  return FakeNccl::get().launch(of(comm),
                                "broadcast " + std::to_string(count) + " of " + name(dtype) +
                                    " from rank " + std::to_string(root),
                                stream);
}
ncclResult_t ncclBcast(void* data, size_t count, ncclDataType_t dtype, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return ncclBroadcast(data, data, count, dtype, root, comm, stream);
}

}  // extern "C"
