#pragma once

#include <memory>
#include <string>

#include "fsdp_runtime/src/engine/shard_memory.h"

namespace fsdp {

class DiskFile;

/// Memory that is a file's: a part of one file without a name, which all groups of the process
/// share that are in the same folder. Its blocks are allocated when it is made, so that a full disk
/// is an error then, and no SIGBUS later; they are given back to the disk with the tensor. On a
/// file system that writes elsewhere what has been written before (btrfs, ZFS, a compressed or
/// thinly provisioned volume) room may lack later all the same. A fork of the process reads what is
/// there, and can neither have more nor free it.
class DiskMemory : public ShardMemory {
 public:
  /// Errors: c10::Error if no file can be made in `folder`.
  explicit DiskMemory(const std::string& folder);
  /// Zeros. Errors: c10::Error with `content`, the folder, the bytes wanted and those that are
  /// free; and in a fork of the process that has made this.
  at::Tensor empty(int64_t numel, at::ScalarType dtype, const std::string& content) const override;
  at::Tensor zeros(int64_t numel, at::ScalarType dtype, const std::string& content) const override {
    return empty(numel, dtype, content);
  }
  bool is_on_disk() const override { return true; }

 private:
  const std::shared_ptr<DiskFile> file_;
};

/// Whether `tensor` is in a DiskMemory. Cheap where there is none. Any thread, as the following.
bool is_on_disk(const at::Tensor& tensor);
/// `part`, contiguous, is not used for some time: writes out what has changed and gives back the
/// pages that are wholly in it, which are not in memory afterwards: neither the process's nor, on a
/// disk, the kernel's. It keeps its values. Blocks the host. No-op unless is_on_disk(part). Errors:
/// c10::Error if the disk has failed to write some range of the same file, now or before.
void release_pages(const at::Tensor& part);
/// Begins what release_pages() does, and waits only while the disk's queue is full. Errors: the
/// same.
void begin_to_release(const at::Tensor& part);

}  // namespace fsdp
