#include "launcher/journal/folder_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/write_all.h"
#include "launcher/journal/holder.h"

namespace fsdprun {
namespace {

constexpr const char* kRecordName = "record";
constexpr const char* kNewRecordName = "record.new";
constexpr const char* kLockName = "lock";
/// Far above what the largest job needs.
constexpr size_t kMaxRecordBytes = 256u << 20;

absl::Status Failed(absl::string_view what, const std::string& path, int error) {
  return absl::UnavailableError(
      absl::StrCat("--journal: cannot ", what, " ", path, ": ", ErrorText(error)));
}

/// Returns an errno; ENOENT if there is no such file.
int ReadAll(int folder, const char* name, std::string* text) {
  const UniqueFd file(::openat(folder, name, O_RDONLY | O_CLOEXEC));
  if (!file.valid()) {
    return errno;
  }
  char buffer[1u << 16];
  while (text->size() <= kMaxRecordBytes) {
    const ssize_t n = ::read(file.get(), buffer, sizeof(buffer));
    if (n == 0) {
      return 0;
    }
    if (n < 0 && errno != EINTR) {
      return errno;
    }
    text->append(buffer, n > 0 ? static_cast<size_t>(n) : 0);
  }
  return EFBIG;
}

absl::Status TakeLock(const std::string& folder, int folder_fd, UniqueFd* lock) {
  const std::string path = absl::StrCat(folder, "/", kLockName);
  lock->reset(::openat(folder_fd, kLockName, O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock->valid()) {
    return Failed("open", path, errno);
  }
  if (::flock(lock->get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) {
      return Failed("lock", path, errno);
    }
    std::string holder;
    ReadAll(folder_fd, kLockName, &holder);
    return absl::AlreadyExistsError(
        absl::StrCat("--journal: another coordinator uses ", folder, " (",
                     holder.empty() ? "it has not said which" : absl::StripAsciiWhitespace(holder),
                     "); end it first, or give each job a folder of its own"));
  }
  const std::string self = absl::StrCat("process ", ::getpid(), " on ", OwnHost(), "\n");
  const int error = ::ftruncate(lock->get(), 0) != 0 ? errno : WriteAll(lock->get(), self);
  return error == 0 ? absl::OkStatus() : Failed("write", path, error);
}

}  // namespace

FolderJournal::FolderJournal(std::string folder, JournaledJob job, UniqueFd folder_fd,
                             UniqueFd lock)
    : folder_(std::move(folder)),
      job_(std::move(job)),
      folder_fd_(std::move(folder_fd)),
      lock_(std::move(lock)) {}

absl::StatusOr<std::unique_ptr<FolderJournal>> FolderJournal::Open(const std::string& folder,
                                                                   const JournaledJob& job) {
  if (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    return Failed("make the folder", folder, errno);
  }
  UniqueFd folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_fd.valid()) {
    return Failed("open the folder", folder, errno);
  }
  UniqueFd lock;
  RETURN_IF_ERROR(TakeLock(folder, folder_fd.get(), &lock));
  auto journal =
      absl::WrapUnique(new FolderJournal(folder, job, std::move(folder_fd), std::move(lock)));
  RETURN_IF_ERROR(journal->ReadRecord());
  return journal;
}

absl::Status FolderJournal::ReadRecord() {
  const std::string path = absl::StrCat(folder_, "/", kRecordName);
  std::string text;
  const int error = ReadAll(folder_fd_.get(), kRecordName, &text);
  if (error == ENOENT) {
    return absl::OkStatus();
  }
  return error != 0 ? Failed("read", path, error) : Use(text, job_, path, "remove the folder");
}

std::string FolderJournal::identity() const {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::canonical(folder_, error);
  return absl::StrCat("folder ", error ? folder_ : path.string());
}

absl::Status FolderJournal::Write(const job::Record& record) {
  const std::string path = absl::StrCat(folder_, "/", kNewRecordName);
  const std::string text = FileText(Encode(record, job_));
  const UniqueFd file(
      ::openat(folder_fd_.get(), kNewRecordName, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) {
    return Failed("open", path, errno);
  }
  if (const int error = WriteAll(file.get(), text); error != 0) {
    return Failed("write", path, error);
  }
  if (::fsync(file.get()) != 0) {
    return Failed("sync", path, errno);
  }
  if (::renameat(folder_fd_.get(), kNewRecordName, folder_fd_.get(), kRecordName) != 0) {
    return Failed("rename", path, errno);
  }
  if (::fsync(folder_fd_.get()) != 0) {
    return Failed("sync", folder_, errno);
  }
  return absl::OkStatus();
}

}  // namespace fsdprun
