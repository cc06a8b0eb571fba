#include "fsdp_runtime/src/engine/disk_memory.h"

#include <ATen/ATen.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <system_error>
#include <utility>

namespace fsdp {

/// What ranges of a file have in common.
struct OpenFile {
  const std::string folder;
  const int descriptor = -1;
  const ::pid_t process = ::getpid();  // a fork shares the blocks, and is not to free them
  std::atomic<int> write_error{0};     // errno; its pages are given back no more
};

namespace {

int64_t page_size() {
  static const auto kSize = static_cast<int64_t>(::sysconf(_SC_PAGESIZE));
  return kSize;
}

int64_t rounded_up(int64_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

/// Without a name; nothing is left of it when the process ends.
int open_without_name(const std::string& folder) {
  std::string path = folder + "/fsdp-offload-XXXXXX";
  const int file = ::mkostemp(path.data(), O_CLOEXEC);
  TORCH_CHECK(file >= 0, "offload: no file can be made in folder ", folder, ": ",
              std::strerror(errno),
              "; give DiskOffloadPolicy an existing folder that this process "
              "may write to");
  ::unlink(path.c_str());
  return file;
}

/// What is mapped of a file.
struct Mapping {
  const char* end = nullptr;
  OpenFile* file = nullptr;
  int64_t offset = 0;  // in the file
};

/// All mappings of the process, by address.
class Mappings {
 public:
  static Mappings& get() {
    static auto* mappings = new Mappings;  // tensors may die after the static objects
    return *mappings;
  }
  void add(const char* begin, const Mapping& mapping) {
    const std::lock_guard<std::mutex> lock(mutex_);
    mappings_[begin] = mapping;
    ++count_;
  }
  Mapping take(const char* begin) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Mapping mapping = mappings_.at(begin);
    mappings_.erase(begin);
    --count_;
    return mapping;
  }
  /// The one that `at` is in, with the offset of that.
  std::optional<Mapping> find(const char* at) {
    if (count_ == 0) {
      return std::nullopt;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    auto found = mappings_.upper_bound(at);
    if (found == mappings_.begin() || at >= (--found)->second.end) {
      return std::nullopt;
    }
    Mapping mapping = found->second;
    mapping.offset += at - found->first;
    return mapping;
  }

 private:
  std::mutex mutex_;
  std::map<const char*, Mapping> mappings_;  // guarded by mutex_
  std::atomic<int64_t> count_{0};            // of them
};

/// The whole pages of a tensor that is on disk.
struct Pages {
  char* begin = nullptr;
  int64_t bytes = 0;
  OpenFile* file = nullptr;
  int64_t offset = 0;
};

std::optional<Pages> pages_of(const at::Tensor& part) {
  if (!part.defined() || !part.is_cpu()) {
    return std::nullopt;
  }
  const auto* begin = static_cast<const char*>(part.const_data_ptr());
  const std::optional<Mapping> mapping = Mappings::get().find(begin);
  if (!mapping) {
    return std::nullopt;
  }
  // The mapping begins with a page, in memory as in the file.
  const int64_t first = rounded_up(mapping->offset);
  const int64_t end =
      (mapping->offset + static_cast<int64_t>(part.nbytes())) / page_size() * page_size();
  if (first >= end) {
    return std::nullopt;
  }
  return Pages{const_cast<char*>(begin) + (first - mapping->offset), end - first, mapping->file,
               first};
}

/// sync_file_range() of `pages`. Where a file system or a sandbox lacks the call, it does nothing,
/// and the kernel writes when it likes.
void write_out(const Pages& pages, unsigned flags) {
  OpenFile& file = *pages.file;
  if (::sync_file_range(file.descriptor, pages.offset, pages.bytes, flags) != 0 &&
      errno != ENOSYS && errno != ESPIPE && errno != EOPNOTSUPP && errno != EINVAL &&
      errno != EPERM) {
    file.write_error = errno;
  }
  // Linux takes pages for clean that it has failed to write: without them the old values would be
  // read. It says so once, of any range of the file.
  TORCH_CHECK(file.write_error == 0, "offload: writing to a file in folder ", file.folder,
              " has failed: ", std::strerror(file.write_error),
              "; parameters or optimizer states of this rank may be lost: end the job, and resume "
              "from a checkpoint with another folder, or when the disk is sound and has room");
}

/// Of a file, up to the process's limit; the kernel would send a signal.
bool is_beyond_limit(int64_t end) {
  struct rlimit limit {};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
         static_cast<rlim_t>(end) > limit.rlim_cur;
}

}  // namespace

/// A file that grows with each range that is mapped of it. Thread: any.
class DiskFile {
 public:
  /// That of the process in `folder`, however that is spelt.
  static std::shared_ptr<DiskFile> in(const std::string& folder) {
    static auto* mutex = new std::mutex;
    static auto* files = new std::map<std::pair<::pid_t, std::string>, std::weak_ptr<DiskFile>>;
    std::error_code error;
    const std::filesystem::path path = std::filesystem::canonical(folder, error);
    const std::lock_guard<std::mutex> lock(*mutex);
    std::weak_ptr<DiskFile>& known = (*files)[{::getpid(), error ? folder : path.string()}];
    std::shared_ptr<DiskFile> file = known.lock();
    if (!file) {
      file = std::make_shared<DiskFile>(folder);
      known = file;
    }
    return file;
  }

  explicit DiskFile(const std::string& folder)
      : file_{.folder = folder, .descriptor = open_without_name(folder)} {}
  ~DiskFile() { ::close(file_.descriptor); }
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  /// Zeros. `bytes` are whole pages.
  void* map(int64_t bytes, const std::string& content) {
    TORCH_CHECK(is_own(), "offload: ", content, " in folder ", file_.folder,
                ": this process is a fork of the one that has sharded the module, and would share "
                "the memory with it; shard the module in the process that trains it");
    const std::lock_guard<std::mutex> lock(mutex_);
    const int64_t offset = end_;
    allocate(offset, bytes, content);
    void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                        file_.descriptor, offset);
    if (data == MAP_FAILED) {
      const int error = errno;
      free_blocks(offset, bytes);
      TORCH_CHECK(false, "offload: ", content, ", ", bytes, " bytes of a file in folder ",
                  file_.folder, ", cannot be mapped into memory: ", std::strerror(error),
                  "; look at the process's limit of address space (ulimit -v)");
    }
    end_ = offset + bytes;
    const auto* begin = static_cast<const char*>(data);
    Mappings::get().add(begin, {begin + bytes, &file_, offset});
    return data;
  }

  void unmap(void* data, int64_t bytes) {
    const Mapping mapping = Mappings::get().take(static_cast<const char*>(data));
    ::munmap(data, static_cast<size_t>(bytes));
    if (is_own()) {
      free_blocks(mapping.offset, bytes);
    }
  }

 private:
  bool is_own() const { return file_.process == ::getpid(); }

  void allocate(int64_t offset, int64_t bytes, const std::string& content) const {
    struct statvfs disk {};
    // Some file systems do not know how large they are.
    const bool is_known = ::fstatvfs(file_.descriptor, &disk) == 0 && disk.f_blocks > 0;
    const auto room = static_cast<int64_t>(disk.f_bavail * disk.f_frsize);
    int error = is_beyond_limit(offset + bytes) ? EFBIG : is_known && room < bytes ? ENOSPC : EINTR;
    while (error == EINTR) {
      error = ::posix_fallocate(file_.descriptor, offset, bytes);
    }
    if (error != 0) {
      free_blocks(offset, bytes);
    }
    TORCH_CHECK(
        error == 0, "offload: no room for ", content, " in folder ", file_.folder, ": ", bytes,
        " bytes wanted, ", is_known ? std::to_string(room) : "unknown", " free (",
        std::strerror(error), "); ",
        error == EFBIG ? "raise the process's limit of file sizes (ulimit -f)" : "make room there",
        ", or give DiskOffloadPolicy another folder");
  }
  void free_blocks(int64_t offset, int64_t bytes) const {
    ::fallocate(file_.descriptor, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, offset, bytes);
  }

  OpenFile file_;
  std::mutex mutex_;
  int64_t end_ = 0;  // guarded by mutex_: of what has ever been mapped
};

DiskMemory::DiskMemory(const std::string& folder) : file_(DiskFile::in(folder)) {}

at::Tensor DiskMemory::empty(int64_t numel, at::ScalarType dtype,
                             const std::string& content) const {
  const auto options = at::TensorOptions(dtype);
  const int64_t bytes = rounded_up(numel * static_cast<int64_t>(c10::elementSize(dtype)));
  if (bytes == 0) {
    return at::empty({0}, options);
  }
  void* data = file_->map(bytes, content);
  return at::from_blob(
      data, {numel}, [file = file_, bytes](void* mapped) { file->unmap(mapped, bytes); }, options);
}

bool is_on_disk(const at::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() &&
         Mappings::get().find(static_cast<const char*>(tensor.const_data_ptr())).has_value();
}

void begin_to_release(const at::Tensor& part) {
  if (const std::optional<Pages> pages = pages_of(part)) {
    write_out(*pages, SYNC_FILE_RANGE_WRITE);
  }
}

void release_pages(const at::Tensor& part) {
  if (const std::optional<Pages> pages = pages_of(part)) {
    write_out(*pages,
              SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    // What fails here leaves pages in memory and no more.
    ::madvise(pages->begin, static_cast<size_t>(pages->bytes), MADV_DONTNEED);
    ::posix_fadvise(pages->file->descriptor, pages->offset, pages->bytes, POSIX_FADV_DONTNEED);
  }
}

}  // namespace fsdp
