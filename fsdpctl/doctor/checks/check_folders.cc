#include <cerrno>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/error_text.h"
#include "fsdpctl/doctor/checks/amounts.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

/// Docker's, which data loaders of PyTorch fill with the first batches.
constexpr uint64_t kDockerShm = 64 * kMib;
constexpr uint64_t kLittleShm = kGib;
constexpr uint64_t kLittleDisk = kGib;
constexpr uint64_t kNoDisk = 64 * kMib;
constexpr uint64_t kFewFilesFree = 1000;

constexpr char kMoreShm[] =
    "docker run --shm-size=8g (or --ipc=host); Kubernetes: an emptyDir with medium Memory at "
    "/dev/shm; else `mount -o remount,size=8g /dev/shm`";
constexpr char kShmUse[] =
    "data loaders of PyTorch pass batches through it and die with SIGBUS when it is full; NCCL "
    "needs it between GPUs of a machine. (The shm backend of fsdp-train does not: it counts "
    "against the memory limit only)";

/// `the folder for logs, /logs/run, to be made in /logs`.
std::string NameOf(const FolderFacts& folder, absl::string_view what) {
  return absl::StrCat(
      what, ", ", folder.path,
      folder.made_in.empty() ? "" : absl::StrCat(", to be made in ", folder.made_in));
}

/// False, with a finding, if nothing more can be said of the folder.
bool IsUsable(const FolderFacts& folder, const char* check, absl::string_view what,
              const char* what_to_do, Findings* findings) {
  if (folder.hangs) {
    findings->Problem(check, {absl::StrCat(NameOf(folder, what), ", does not answer"),
                              "its file system hangs, and so will whatever touches it",
                              absl::StrCat("look at its server (`findmnt -T ", folder.path,
                                           "`), or use another folder")});
    return false;
  }
  if (folder.error != 0) {
    findings->Problem(
        check, {absl::StrCat(NameOf(folder, what), ", cannot be used: ", ErrorText(folder.error)),
                "", what_to_do});
    return false;
  }
  if (!folder.is_writable) {
    findings->Problem(check,
                      {absl::StrCat(NameOf(folder, what), ", cannot be written"), "", what_to_do});
    return false;
  }
  return true;
}

/// Free space and files.
bool HasRoom(const FolderFacts& folder, const char* check, absl::string_view what,
             const char* what_to_do, Findings* findings) {
  const bool lacks_files = folder.files_total > 0 && folder.files_free < kFewFilesFree;
  if (folder.free >= kLittleDisk && !lacks_files) {
    return true;
  }
  const std::string found =
      lacks_files ? absl::StrCat(NameOf(folder, what), ", has room for ", folder.files_free,
                                 " more files (inodes)")
                  : absl::StrCat(NameOf(folder, what), ", has ", BytesText(folder.free),
                                 " free of ", BytesText(folder.total));
  findings->Add(folder.free < kNoDisk || (lacks_files && folder.files_free == 0)
                    ? Severity::kProblem
                    : Severity::kWarning,
                check, {found, "logs of the workers are cut off when it is full", what_to_do});
  return false;
}

void CheckFolder(const FolderFacts& folder, const char* check, absl::string_view what,
                 const char* what_to_do, Findings* findings) {
  if (!IsUsable(folder, check, what, what_to_do, findings) ||
      !HasRoom(folder, check, what, what_to_do, findings)) {
    return;
  }
  const std::string found =
      absl::StrCat(NameOf(folder, what), ", has ", BytesText(folder.free), " free",
                   folder.type.empty() ? "" : absl::StrCat(" (", folder.type, ")"));
  if (folder.is_network) {
    findings->Note(check, {found,
                           "it is on a network file system: others may see lines late, and the "
                           "last ones may be lost with this machine",
                           "a local folder is faster and surer"});
  } else {
    findings->Ok(check, found);
  }
}

}  // namespace

std::vector<Finding> CheckSharedMemory(const SharedMemoryFacts& facts) {
  Findings findings(CheckGroup::kSharedMemory);
  const FolderFacts& shm = facts.folder;
  const std::string found = absl::StrCat(shm.path, " has ", BytesText(shm.total), ", ",
                                         BytesText(shm.free), " of them free");
  if (shm.error == ENOENT) {
    findings.Problem("dev_shm", {absl::StrCat("there is no ", shm.path), kShmUse,
                                 "`mount -t tmpfs -o mode=1777 tmpfs /dev/shm`"});
  } else if (IsUsable(shm, "dev_shm", "shared memory", "`chmod 1777 /dev/shm`", &findings)) {
    if (shm.type != "tmpfs" && shm.type != "ramfs") {
      findings.Warn("dev_shm", {absl::StrCat(shm.path, " is no tmpfs"), kShmUse,
                                "`mount -t tmpfs -o mode=1777 tmpfs /dev/shm`"});
    } else if (shm.total <= kDockerShm) {
      findings.Problem("dev_shm", {found, kShmUse, kMoreShm});
    } else if (shm.total < kLittleShm) {
      findings.Warn("dev_shm", {found, kShmUse, kMoreShm});
    } else if (shm.free < kLittleShm) {
      findings.Warn("dev_shm", {found, kShmUse,
                                "remove what jobs that were killed have left: `ls -lS /dev/shm`"});
    } else {
      findings.Ok("dev_shm", found);
    }
  }
  if (facts.memfd_error != 0) {
    findings.Problem("memfd", {absl::StrCat("memory files cannot be made: memfd_create: ",
                                            ErrorText(facts.memfd_error)),
                               "the shm backend of fsdp-train shares memory through them",
                               "allow the system call in the container's seccomp profile; or "
                               "train with another backend"});
  } else {
    findings.Ok("memfd", "memory files (memfd) can be made");
  }
  return findings.Take();
}

std::vector<Finding> CheckStorage(const StorageFacts& facts) {
  Findings findings(CheckGroup::kFolders);
  CheckFolder(facts.temporary, "temporary", "the folder for temporary files",
              "set TMPDIR to a local folder with room", &findings);
  if (facts.logs.has_value()) {
    CheckFolder(*facts.logs, "logs", "the folder for logs", "give another --log-dir", &findings);
  }
  const Advice advice{
      absl::StrCat("the private folder ", facts.runtime_path,
                   facts.runtime_exists ? " is not a directory that only this user may use"
                                        : " cannot be made"),
      "fsdpctl finds the jobs of this machine there, and daemons keep their sessions there",
      facts.runtime_exists
          ? absl::StrCat("`rm -r ", facts.runtime_path, "`")
          : "unset XDG_RUNTIME_DIR (it often names a folder that is only there after a login), or "
            "make the folder that it names"};
  if (facts.runtime_exists && facts.runtime_is_private) {
    findings.Ok("runtime", absl::StrCat("the private folder is ", facts.runtime_path));
  } else if (facts.runtime_exists || facts.runtime.error != 0 || !facts.runtime.is_writable) {
    findings.Warn("runtime", advice);
  } else {
    findings.Ok("runtime", absl::StrCat("the private folder will be ", facts.runtime_path));
  }
  return findings.Take();
}

}  // namespace fsdprun::doctor
