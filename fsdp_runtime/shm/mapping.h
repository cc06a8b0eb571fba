#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

namespace fsdp::shm {

/// Of a page of memory.
size_t page_bytes();

/// Owns a file descriptor.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A shared mapping of an anonymous memory file (memfd). Nothing appears in /dev/shm, so nothing
/// can be left behind: the memory is freed with its last mapping.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  /// Creates `bytes` of zeroed, sparse memory: a page is allocated by its first write.
  static Mapping create(const std::string& label, size_t bytes);
  /// Maps descriptor `fd` of process `pid`, and keeps one of its own. Throws Error if /proc does
  /// not allow it.
  static Mapping open(pid_t pid, int fd, size_t bytes);

  char* data() const { return static_cast<char*>(data_); }
  size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }
  /// Closes the descriptor. To be called only when every peer has mapped it, and if none of its
  /// memory is ever to be mapped again.
  void close_fd() { Fd gone = std::move(fd_); }
  /// Keeps the range out of core dumps (peers' memory) and asks for huge pages where allowed.
  void advise(bool dump);

 private:
  Fd fd_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace fsdp::shm
