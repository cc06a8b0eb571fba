#include "formats/checkpoint/rank_file.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>

#include "formats/checkpoint/torch_blob.h"
#include "fsdp_runtime/plan/box.h"

namespace fsdprun::checkpoint {
namespace {

// What fits into the cache of a core, where the second checksum and the write then find it.
constexpr size_t kWriteBytes = size_t{128} << 10;
constexpr size_t kFilePageBytes = size_t{4} << 10;

int64_t DataBytes(const BlobToWrite& blob) {
  return fsdp::plan::numel_of(blob.sizes) * InfoOf(blob.dtype).element_bytes;
}

int64_t BlobBytes(const BlobToWrite& blob) {
  if (blob.data == nullptr) {
    return static_cast<int64_t>(blob.object.size());
  }
  const BlobFrame frame = FrameTensor(blob.dtype, blob.sizes, 0);
  return static_cast<int64_t>(frame.prefix.size() + frame.suffix.size()) + DataBytes(blob);
}

/// sync_file_range, which changes nothing and promises nothing, but for the disk's pace. Returns 0
/// or the errno of a write that has failed: having told it once, Linux does not tell it again.
int WriteBack(const FileDescriptor& file, int64_t begin, int64_t end, unsigned flags) {
  if (begin == end || sync_file_range(file.get(), begin, end - begin, flags) == 0) {
    return 0;
  }
  const bool is_of_the_call =
      errno == ENOSYS || errno == EINVAL || errno == ESPIPE || errno == EINTR;
  return is_of_the_call ? 0 : errno;
}

/// Appends to an open file; keeps the checksums of the file and of the current blob.
class Appender {
 public:
  Appender(FileSystem& file_system, std::string path, int64_t total_bytes, int64_t window_bytes)
      : file_system_(file_system),
        path_(std::move(path)),
        total_bytes_(total_bytes),
        window_bytes_(window_bytes) {
    Check(file_system_.Create(path_, file_), "create");
    Check(file_system_.Reserve(file_, path_, total_bytes_), "write");
  }

  ManifestItem Append(const BlobToWrite& blob) {
    StreamHash hash;
    const int64_t offset = position_;
    if (blob.data == nullptr) {
      Write(blob.object.data(), blob.object.size(), hash);
    } else {
      const auto data_bytes = static_cast<size_t>(DataBytes(blob));
      const BlobFrame frame = FrameTensor(blob.dtype, blob.sizes, kNoCrc32);
      Write(frame.prefix.data(), frame.prefix.size(), hash);
      Write(blob.data, data_bytes, hash);
      Write(frame.suffix.data(), frame.suffix.size(), hash);
    }
    return {blob.key, offset, position_ - offset, hash.Digest()};
  }

  void Sync() { Check(file_system_.Sync(file_, path_), "write"); }
  int64_t position() const { return position_; }
  std::string Digest() const { return file_hash_.Digest(); }

 private:
  void Check(int error, std::string_view action) const {
    CheckIo(error, action, path_, total_bytes_);
  }

  void Write(const void* data, size_t byte_count, StreamHash& hash) {
    const char* next = static_cast<const char*>(data);
    while (byte_count > 0) {
      // To the end of a page of the file: then the kernel copies to whole pages.
      const size_t count =
          std::min(byte_count, kWriteBytes - static_cast<size_t>(position_) % kFilePageBytes);
      hash.Add(next, count);
      file_hash_.Add(next, count);
      Check(file_system_.Write(file_, path_, next, count), "write");
      next += count;
      position_ += static_cast<int64_t>(count);
      byte_count -= count;
      if (position_ - window_ >= window_bytes_) {
        EndWindow();
      }
    }
  }

  /// The disk begins with the window that ends here, and is waited for with the one before.
  void EndWindow() {
    constexpr unsigned kAwait =
        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    Check(WriteBack(file_, window_, position_, SYNC_FILE_RANGE_WRITE), "write");
    Check(WriteBack(file_, awaited_, window_, kAwait), "write");
    awaited_ = window_;
    window_ = position_;
  }

  FileSystem& file_system_;
  std::string path_;
  int64_t total_bytes_;
  int64_t window_bytes_;
  FileDescriptor file_;
  StreamHash file_hash_;
  int64_t position_ = 0;
  // Up to here the disk has written; from here it has not even begun.
  int64_t awaited_ = 0;
  int64_t window_ = 0;
};

}  // namespace

std::string RankFileName(int64_t rank) { return "__" + std::to_string(rank) + "_0.distcp"; }

ManifestFile WriteRankFile(FileSystem& file_system, const std::string& directory, int64_t rank,
                           const std::vector<BlobToWrite>& blobs, int64_t window_bytes) {
  ManifestFile written;
  if (blobs.empty()) {
    return written;
  }
  int64_t total_bytes = 0;
  for (const BlobToWrite& blob : blobs) {
    total_bytes += BlobBytes(blob);
  }
  Appender file(file_system, directory + "/" + RankFileName(rank), total_bytes, window_bytes);
  for (const BlobToWrite& blob : blobs) {
    written.items.push_back(file.Append(blob));
  }
  file.Sync();
  CheckIo(file_system.SyncDirectory(directory), "sync", directory);
  written.bytes = file.position();
  written.xxh3 = file.Digest();
  return written;
}

}  // namespace fsdprun::checkpoint
