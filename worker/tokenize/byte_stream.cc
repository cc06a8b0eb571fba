#include "worker/tokenize/byte_stream.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>
#include <vector>

#include "formats/files/output_stop.h"
#include "formats/json/strict_json.h"

namespace fsdprun::worker {
namespace {

constexpr size_t kInputBytes = size_t{256} << 10;
constexpr int kPatienceMs = 200;

[[noreturn]] void RefuseInput(const std::string& path, const std::string& cause) {
  throw ConfigError("cannot read " + path + ": " + cause);
}

/// A file, from its start to its end.
class PlainStream : public ByteStream {
 public:
  /// Without waiting for who writes into a pipe: Await does.
  explicit PlainStream(const std::string& path)
      : path_(path), fd_(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    if (fd_ < 0) {
      RefuseInput(path, std::strerror(errno));
    }
    posix_fadvise(fd_, 0, 0, POSIX_FADV_SEQUENTIAL);
  }
  ~PlainStream() override { close(fd_); }
  PlainStream(const PlainStream&) = delete;
  PlainStream& operator=(const PlainStream&) = delete;

  size_t Read(char* out, size_t capacity) override {
    for (;;) {
      CheckOutputsGoOn("read", path_);
      if (!Await()) {
        continue;  // a pipe that nobody has opened yet would be at its end
      }
      const ssize_t count = read(fd_, out, capacity);
      if (count >= 0) {
        bytes_read_ += count;
        return static_cast<size_t>(count);
      }
      if (errno != EINTR && errno != EAGAIN) {
        RefuseInput(path_,
                    std::string(std::strerror(errno)) + " at byte " + std::to_string(bytes_read_));
      }
    }
  }
  int64_t file_bytes_read() const override { return bytes_read_; }

 private:
  /// Until there is something to read, or to look whether it is still wanted: false.
  bool Await() const {
    struct pollfd waiting {
      fd_, POLLIN, 0
    };
    return poll(&waiting, 1, kPatienceMs) > 0;
  }

  std::string path_;
  int fd_;
  int64_t bytes_read_ = 0;
};

/// What both kinds of compressed files have.
class CompressedStream : public ByteStream {
 public:
  CompressedStream(std::unique_ptr<ByteStream> file, std::string path)
      : file_(std::move(file)), path_(std::move(path)), input_(kInputBytes) {}

  int64_t file_bytes_read() const override { return file_->file_bytes_read(); }

 protected:
  /// False at the end of the file.
  bool Refill() {
    count_ = file_->Read(input_.data(), input_.size());
    at_ = 0;
    return count_ != 0;
  }
  const char* data() const { return input_.data() + at_; }
  size_t available() const { return count_ - at_; }
  void Consume(size_t count) { at_ += count; }
  [[noreturn]] void RefuseHere(const std::string& cause) const {
    RefuseInput(path_,
                cause + " at byte " +
                    std::to_string(file_->file_bytes_read() - static_cast<int64_t>(available())) +
                    " of the compressed file");
  }

 private:
  std::unique_ptr<ByteStream> file_;
  std::string path_;
  std::vector<char> input_;
  size_t at_ = 0;
  size_t count_ = 0;
};

class GzipStream : public CompressedStream {
 public:
  GzipStream(std::unique_ptr<ByteStream> file, const std::string& path)
      : CompressedStream(std::move(file), path) {
    // 16: only gzip, with its header and checksum.
    if (inflateInit2(&state_, 15 + 16) != Z_OK) {
      throw std::bad_alloc();
    }
  }
  ~GzipStream() override { inflateEnd(&state_); }
  GzipStream(const GzipStream&) = delete;
  GzipStream& operator=(const GzipStream&) = delete;

  size_t Read(char* out, size_t capacity) override {
    for (;;) {
      if (available() == 0 && !Refill()) {
        if (is_within_) {
          RefuseHere("it ends early");
        }
        return 0;
      }
      if (const size_t count = Inflate(out, capacity); count > 0) {
        return count;
      }
    }
  }

 private:
  size_t Inflate(char* out, size_t capacity) {
    // A file may be several, one behind the other.
    if (!is_within_) {
      inflateReset(&state_);
      is_within_ = true;
    }
    state_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data()));
    state_.avail_in = static_cast<uInt>(available());
    state_.next_out = reinterpret_cast<Bytef*>(out);
    state_.avail_out = static_cast<uInt>(std::min<size_t>(capacity, UINT32_MAX));
    const uInt room = state_.avail_out;
    const int result = inflate(&state_, Z_NO_FLUSH);
    Consume(available() - state_.avail_in);
    if (result == Z_STREAM_END) {
      is_within_ = false;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      RefuseHere(std::string("it is no gzip file, or damaged (") +
                 (state_.msg != nullptr ? state_.msg : zError(result)) + ")");
    }
    return room - state_.avail_out;
  }

  z_stream state_{};
  bool is_within_ = false;
};

class ZstdStream : public CompressedStream {
 public:
  ZstdStream(std::unique_ptr<ByteStream> file, const std::string& path)
      : CompressedStream(std::move(file), path), state_(ZSTD_createDStream()) {
    if (state_ == nullptr) {
      throw std::bad_alloc();
    }
  }
  ~ZstdStream() override { ZSTD_freeDStream(state_); }
  ZstdStream(const ZstdStream&) = delete;
  ZstdStream& operator=(const ZstdStream&) = delete;

  size_t Read(char* out, size_t capacity) override {
    for (;;) {
      // Even without input there may be output that had no room.
      if (available() == 0 && !has_output_ && !Refill()) {
        if (is_within_) {
          RefuseHere("it ends early");
        }
        return 0;
      }
      if (const size_t count = Decompress(out, capacity); count > 0) {
        return count;
      }
    }
  }

 private:
  size_t Decompress(char* out, size_t capacity) {
    ZSTD_inBuffer input{data(), available(), 0};
    ZSTD_outBuffer output{out, capacity, 0};
    const size_t result = ZSTD_decompressStream(state_, &output, &input);
    if (ZSTD_isError(result) != 0) {
      RefuseHere(std::string("it is no zstd file, or damaged (") + ZSTD_getErrorName(result) + ")");
    }
    Consume(input.pos);
    // Between frames it asks for the next one even where nothing is left.
    if (input.pos != 0 || output.pos != 0) {
      is_within_ = result != 0;
    }
    has_output_ = output.pos == output.size;
    return output.pos;
  }

  ZSTD_DStream* state_;
  bool is_within_ = false;
  bool has_output_ = false;
};

}  // namespace

std::unique_ptr<ByteStream> OpenPlainStream(const std::string& path) {
  return std::make_unique<PlainStream>(path);
}

std::unique_ptr<ByteStream> Decompressed(std::unique_ptr<ByteStream> raw, const std::string& path) {
  if (path.ends_with(".gz")) {
    return std::make_unique<GzipStream>(std::move(raw), path);
  }
  if (path.ends_with(".zst")) {
    return std::make_unique<ZstdStream>(std::move(raw), path);
  }
  return raw;
}

std::unique_ptr<ByteStream> OpenByteStream(const std::string& path) {
  return Decompressed(OpenPlainStream(path), path);
}

int64_t FileBytes(const std::string& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    RefuseInput(path, std::strerror(errno));
  }
  if (S_ISDIR(status.st_mode)) {
    RefuseInput(path, "it is a directory; give the files in it");
  }
  return S_ISREG(status.st_mode) ? status.st_size : 0;
}

}  // namespace fsdprun::worker
