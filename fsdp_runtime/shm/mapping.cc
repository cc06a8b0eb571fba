#include "fsdp_runtime/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

#include "fsdp_runtime/shm/error.h"

namespace fsdp::shm {
namespace {

[[noreturn]] void fail(const std::string& attempted) {
  throw Error(attempted + ": " + std::strerror(errno));
}

void* map(int fd, size_t bytes) {
  void* data = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  if (data == MAP_FAILED) {
    fail("mapping " + std::to_string(bytes) +
         " bytes of shared memory (is the address space limited? see ulimit -v)");
  }
  return data;
}

}  // namespace

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

Mapping::Mapping(Mapping&& other) noexcept
    : fd_(std::move(other.fd_)),
      data_(std::exchange(other.data_, nullptr)),
      bytes_(std::exchange(other.bytes_, 0)) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (data_ != nullptr) {
    ::munmap(data_, bytes_);
  }
}

Mapping Mapping::create(const std::string& label, size_t bytes) {
  Mapping result;
  result.fd_ = Fd(::memfd_create(label.c_str(), MFD_CLOEXEC));
  if (!result.fd_.valid()) {
    fail("creating shared memory with memfd_create");
  }
  if (::ftruncate(result.fd_.get(), static_cast<off_t>(bytes)) != 0) {
    fail("sizing shared memory to " + std::to_string(bytes) + " bytes");
  }
  result.data_ = map(result.fd_.get(), bytes);
  result.bytes_ = bytes;
  return result;
}

Mapping Mapping::open(pid_t pid, int fd, size_t bytes) {
  const std::string path = "/proc/" + std::to_string(pid) + "/fd/" + std::to_string(fd);
  Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened.valid()) {
    fail("opening a peer's shared memory through " + path +
         " (needs the same user, the same pid namespace and a readable /proc; otherwise choose "
         "backend gloo)");
  }
  struct stat info {};
  if (::fstat(opened.get(), &info) != 0 || static_cast<size_t>(info.st_size) != bytes) {
    throw Error("opening a peer's shared memory through " + path + ": " + std::to_string(bytes) +
                " bytes expected, got " + std::to_string(info.st_size) +
                "; the descriptor belongs to something else");
  }
  Mapping result;
  result.data_ = map(opened.get(), bytes);
  result.fd_ = std::move(opened);
  result.bytes_ = bytes;
  return result;
}

void Mapping::advise(bool dump) {
  // Both are hints; a kernel without them only runs slower or dumps more.
  ::madvise(data_, bytes_, MADV_HUGEPAGE);
  if (!dump) {
    ::madvise(data_, bytes_, MADV_DONTDUMP);
  }
}

}  // namespace fsdp::shm
