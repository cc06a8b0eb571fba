// What file_system.h declares of reading: files and their checksums.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "formats/checkpoint/error.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/xxh3_avx2.h"

namespace fsdprun::checkpoint {
namespace {

constexpr size_t kHashBufferBytes = size_t{4} << 20;

// O_NONBLOCK: opening a FIFO must not wait for its writer.
FileDescriptor OpenToRead(const std::string& path) {
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  } while (fd < 0 && errno == EINTR);
  return FileDescriptor(fd);
}

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path), file_(OpenToRead(path)) {
  if (file_.get() < 0) {
    const int error = errno;
    throw CheckpointError("cannot read " + path + ": " + std::strerror(error), error);
  }
  struct stat stats {};
  const int error = fstat(file_.get(), &stats) != 0 ? errno : 0;
  if (error != 0 || !S_ISREG(stats.st_mode)) {
    throw CheckpointError(
        "cannot read " + path + ": " + (error != 0 ? std::strerror(error) : "not a regular file"),
        error);
  }
  inode_ = stats.st_ino;
  size_ = stats.st_size;
  modified_ns_ = int64_t{stats.st_mtim.tv_sec} * 1'000'000'000 + stats.st_mtim.tv_nsec;
}

void InputFile::Read(int64_t offset, void* out, int64_t byte_count) const {
  char* next = static_cast<char*>(out);
  while (byte_count > 0) {
    const ssize_t count = pread(file_.get(), next, static_cast<size_t>(byte_count), offset);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      const int error = count < 0 ? errno : 0;
      throw CheckpointError("cannot read " + path_ + " at byte " + std::to_string(offset) + ": " +
                                (error != 0 ? std::strerror(error) : "the file is truncated"),
                            error);
    }
    next += count;
    offset += count;
    byte_count -= count;
  }
}

std::string ReadWholeFile(const InputFile& file, int64_t byte_count_max) {
  if (file.size() > byte_count_max) {
    throw CheckpointError("refused to read " + file.path() + ": " + std::to_string(file.size()) +
                          " bytes are over the bound of " + std::to_string(byte_count_max));
  }
  std::string bytes(static_cast<size_t>(file.size()), '\0');
  file.Read(0, bytes.data(), file.size());
  return bytes;
}

std::string ReadWholeFile(const std::string& path, int64_t byte_count_max) {
  return ReadWholeFile(InputFile(path), byte_count_max);
}

std::string HashBytes(std::string_view bytes) {
  return Hex(XXH3_64bits(bytes.data(), bytes.size()));
}

std::string HashFile(const InputFile& file, int64_t offset, int64_t byte_count) {
  std::string buffer(std::min<size_t>(kHashBufferBytes, static_cast<size_t>(byte_count)), '\0');
  StreamHash hash;
  while (byte_count > 0) {
    const int64_t count = std::min<int64_t>(byte_count, static_cast<int64_t>(buffer.size()));
    file.Read(offset, buffer.data(), count);
    hash.Add(buffer.data(), static_cast<size_t>(count));
    offset += count;
    byte_count -= count;
  }
  return hash.Digest();
}

StreamHash::StreamHash() : state_(XXH3_createState()) {
  XXH3_64bits_reset(static_cast<XXH3_state_t*>(state_));
}

StreamHash::~StreamHash() { XXH3_freeState(static_cast<XXH3_state_t*>(state_)); }

void StreamHash::Add(const void* data, size_t byte_count) {
#ifdef __x86_64__
  static const bool has_avx2 = __builtin_cpu_supports("avx2") != 0;
  if (has_avx2) {
    UpdateXxh3WithAvx2(state_, data, byte_count);
    return;
  }
#endif
  XXH3_64bits_update(static_cast<XXH3_state_t*>(state_), data, byte_count);
}

std::string StreamHash::Digest() const {
  return Hex(XXH3_64bits_digest(static_cast<XXH3_state_t*>(state_)));
}

}  // namespace fsdprun::checkpoint
