#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/unique_fd.h"
#include "fsdpctl/doctor/machine/probe.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "launcher/directory/private_folder.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kFolderPatience = std::chrono::seconds(5);

/// What a child process tells of a folder.
struct RawFolder {
  int error = 0;
  bool is_writable = false;
  bool is_private = false;
  int64_t type = 0;
  uint64_t total = 0;
  uint64_t free = 0;
  uint64_t files_total = 0;
  uint64_t files_free = 0;
  /// It is told of the folder that is so many above.
  int levels_above = 0;
};

struct FileSystemType {
  int64_t number;
  const char* name;
  bool is_network;
};

/// Those of <linux/magic.h> have its names, the others their makers' numbers.
constexpr FileSystemType kTypes[] = {
    {TMPFS_MAGIC, "tmpfs", false},
    {RAMFS_MAGIC, "ramfs", false},
    {EXT4_SUPER_MAGIC, "ext", false},
    {XFS_SUPER_MAGIC, "xfs", false},
    {BTRFS_SUPER_MAGIC, "btrfs", false},
    {OVERLAYFS_SUPER_MAGIC, "overlay", false},
    {0x2fc12fc1, "zfs", false},
    {NFS_SUPER_MAGIC, "nfs", true},
    {CEPH_SUPER_MAGIC, "ceph", true},
    {AFS_SUPER_MAGIC, "afs", true},
    {CIFS_SUPER_MAGIC, "cifs", true},
    {SMB2_SUPER_MAGIC, "smb2", true},
    {V9FS_MAGIC, "9p", true},
    {0x0bd00bd0, "lustre", true},
    {0x47504653, "gpfs", true},
    {0x19830326, "beegfs", true},
    {0xaad7aaea, "panfs", true},
    {FUSE_SUPER_MAGIC, "fuse", true},
};

RawFolder LookAt(const std::string& path) {
  RawFolder folder;
  struct stat info {};
  struct statfs system {};
  if (::stat(path.c_str(), &info) != 0 || ::statfs(path.c_str(), &system) != 0) {
    folder.error = errno;
    return folder;
  }
  if (!S_ISDIR(info.st_mode)) {
    folder.error = ENOTDIR;
    return folder;
  }
  folder.is_writable = ::access(path.c_str(), W_OK | X_OK) == 0;
  folder.is_private = info.st_uid == ::geteuid() && (info.st_mode & 077) == 0;
  // Numbers of types have 32 bits, and the field may be signed.
  folder.type = static_cast<int64_t>(static_cast<uint32_t>(system.f_type));
  const auto block = static_cast<uint64_t>(system.f_bsize);
  folder.total = system.f_blocks * block;
  folder.free = system.f_bavail * block;
  folder.files_total = system.f_files;
  folder.files_free = system.f_ffree;
  return folder;
}

/// The folder that it is in; of the root, and of the working directory, the same again.
std::string Above(const std::string& path) {
  const std::filesystem::path above = std::filesystem::path(path).lexically_normal().parent_path();
  return above.empty() ? "." : above.string();
}

/// A link to nothing is no folder, and keeps one from being made.
bool IsMissing(const std::string& path, const RawFolder& folder) {
  struct stat info {};
  return folder.error == ENOENT && ::lstat(path.c_str(), &info) != 0;
}

/// Where there is no such folder, the nearest one above it.
RawFolder LookAtOrAbove(std::string path) {
  RawFolder folder = LookAt(path);
  for (int above = 1; IsMissing(path, folder) && Above(path) != path; ++above) {
    path = Above(path);
    folder = LookAt(path);
    folder.levels_above = above;
  }
  return folder;
}

absl::StatusOr<RawFolder> Look(const std::string& path) {
  return ProbeFor<RawFolder>([&path] { return LookAt(path); }, kFolderPatience);
}

FolderFacts FactsOf(const std::string& path, const absl::StatusOr<RawFolder>& raw) {
  FolderFacts facts{.path = path};
  if (!raw.ok()) {
    facts.hangs = absl::IsDeadlineExceeded(raw.status());
    facts.error = facts.hangs ? 0 : EIO;
    return facts;
  }
  for (int i = 0; i < raw->levels_above; ++i) {
    facts.made_in = Above(facts.made_in.empty() ? path : facts.made_in);
  }
  facts.error = raw->error;
  facts.is_writable = raw->is_writable;
  facts.total = raw->total;
  facts.free = raw->free;
  facts.files_total = raw->files_total;
  facts.files_free = raw->files_free;
  for (const FileSystemType& type : kTypes) {
    if (type.number == raw->type) {
      facts.type = type.name;
      facts.is_network = type.is_network;
    }
  }
  return facts;
}

std::string TemporaryFolder(const Environment& environment) {
  const auto found = environment.find("TMPDIR");
  return found == environment.end() || found->second.empty() ? "/tmp" : found->second;
}

}  // namespace

FolderFacts ReadFolder(const std::string& path) { return FactsOf(path, Look(path)); }

FolderFacts ReadFolderToMake(const std::string& path) {
  return FactsOf(path,
                 ProbeFor<RawFolder>([&path] { return LookAtOrAbove(path); }, kFolderPatience));
}

SharedMemoryFacts ReadSharedMemory() {
  const UniqueFd file(::memfd_create("fsdpctl-doctor", MFD_CLOEXEC));
  const int memfd_error = file.valid() ? 0 : errno;
  return {.folder = ReadFolder("/dev/shm"), .memfd_error = memfd_error};
}

StorageFacts ReadStorage(const std::string& log_dir, const Environment& environment) {
  StorageFacts facts;
  facts.temporary = ReadFolder(TemporaryFolder(environment));
  if (!log_dir.empty()) {
    facts.logs = ReadFolderToMake(log_dir);
  }
  facts.runtime_path = RuntimeFolder(environment);
  const absl::StatusOr<RawFolder> own = Look(facts.runtime_path);
  facts.runtime_exists = own.ok() && own->error != ENOENT;
  facts.runtime_is_private = own.ok() && own->error == 0 && own->is_private;
  const std::string above = facts.runtime_path.substr(0, facts.runtime_path.rfind('/'));
  facts.runtime = ReadFolder(above.empty() ? "/" : above);
  return facts;
}

}  // namespace fsdprun::doctor
