#include "tests/unit/fsdp_runtime/offload/failing_disk.h"

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace fsdp::testing {
namespace {

std::atomic<int> allocation_error{0};
std::atomic<int> allocations_left{0};
std::atomic<int> writing_error{0};

}  // namespace

FailingDisk::FailingDisk(const Errors& errors) {
  allocations_left = errors.allocations_before;
  allocation_error = errors.of_allocation;
  writing_error = errors.of_writing;
}

FailingDisk::~FailingDisk() {
  allocation_error = 0;
  writing_error = 0;
}

}  // namespace fsdp::testing

// What libfsdp calls: a program's own functions come ahead of the C library's.

extern "C" __attribute__((visibility("default"))) int posix_fallocate(int descriptor, off_t offset,
                                                                      off_t bytes) {
  if (fsdp::testing::allocation_error != 0 && fsdp::testing::allocations_left-- <= 0) {
    return fsdp::testing::allocation_error;
  }
  return ::posix_fallocate64(descriptor, offset, bytes);  // the same by another name
}

extern "C" __attribute__((visibility("default"))) int sync_file_range(int descriptor,
                                                                      off64_t offset, off64_t bytes,
                                                                      unsigned int flags) {
  if (fsdp::testing::writing_error != 0) {
    errno = fsdp::testing::writing_error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_sync_file_range, descriptor, offset, bytes, flags));
}
