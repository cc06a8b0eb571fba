#include "launcher/directory/join_record_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/user_folder.h"

namespace fsdprun {
namespace {

constexpr size_t kNameBytes = 8;
constexpr size_t kReadBytes = 65536;
/// Nobody needs as long to write a record, whatever the clocks of a file server say.
constexpr auto kOldestTemporary = std::chrono::hours(1);

// The folders down to that of the records, outermost first; empty without a home directory.
std::vector<std::string> RecordFolders(const Environment& environment) {
  std::vector<std::string> folders = UserFolders(environment);
  if (!folders.empty()) {
    folders.push_back(absl::StrCat(folders.back(), "/slurm"));
  }
  return folders;
}

std::string PathOf(const std::vector<std::string>& folders, const std::string& cluster,
                   const std::string& job) {
  return folders.empty() ? "" : absl::StrCat(folders.back(), "/", cluster, ".", job);
}

// A network file system tells of a full quota when the file is closed.
absl::Status WriteNewFile(const std::string& path, absl::string_view text) {
  UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  const bool is_written =
      file.valid() && (errno = WriteAll(file.get(), text)) == 0 && ::close(file.release()) == 0;
  return is_written ? absl::OkStatus()
                    : absl::InternalError(absl::StrCat("write ", path, ": ", ErrorText(errno)));
}

absl::StatusOr<std::string> ReadPrivate(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("read ", path, ": ", ErrorText(errno)));
  }
  if (!S_ISREG(info.st_mode) || info.st_uid != ::geteuid() || (info.st_mode & 077) != 0) {
    return absl::PermissionDeniedError(
        absl::StrCat(path,
                     " has the command of a job, but is no file that this user alone can read "
                     "and write; see who changed it, and start the job again"));
  }
  std::string text;
  char piece[kReadBytes];
  for (ssize_t n = 1; n > 0;) {
    n = ::read(file.get(), piece, sizeof(piece));
    text.append(piece, n > 0 ? static_cast<size_t>(n) : 0);
  }
  return text;
}

std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  return names;
}

// Records of jobs of this id, in whichever cluster.
std::vector<std::string> FindRecords(const std::string& folder, const std::string& job) {
  std::vector<std::string> found;
  for (const std::string& name : FilesIn(folder)) {
    if (absl::EndsWith(name, absl::StrCat(".", job))) {
      found.push_back(absl::StrCat(folder, "/", name));
    }
  }
  return found;
}

std::string TemporaryName() { return absl::StrCat(".", RandomHex(kNameBytes)); }

bool IsTemporaryName(absl::string_view name) {
  return absl::ConsumePrefix(&name, ".") && name.size() == 2 * kNameBytes &&
         name.find_first_not_of("0123456789abcdef") == absl::string_view::npos;
}

// Of launchers that were killed while they wrote: they have the same secrets as records.
void RemoveTemporaries(const std::string& folder) {
  for (const std::string& name : FilesIn(folder)) {
    std::error_code error;
    const std::filesystem::path path = absl::StrCat(folder, "/", name);
    if (!IsTemporaryName(name)) {
      continue;
    }
    const auto written = std::filesystem::last_write_time(path, error);
    if (!error && std::filesystem::file_time_type::clock::now() - written > kOldestTemporary) {
      ::unlink(path.c_str());
    }
  }
}

bool IsJob(absl::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789_") == absl::string_view::npos;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JoinRecordFile>> JoinRecordFile::Write(
    const Environment& environment, const SlurmJoinRecord& record) {
  const std::vector<std::string> folders = RecordFolders(environment);
  if (folders.empty()) {
    return absl::NotFoundError("this user has no home directory: HOME is not set");
  }
  RETURN_IF_ERROR(MakeFolders(folders));
  const std::string path = PathOf(folders, record.cluster, record.job);
  RemoveTemporaries(folders.back());
  const std::string temporary = absl::StrCat(folders.back(), "/", TemporaryName());
  std::string text = EncodeJoinRecord(record);
  absl::Status written = WriteNewFile(temporary, text);
  if (written.ok() && ::rename(temporary.c_str(), path.c_str()) != 0) {
    written = absl::InternalError(absl::StrCat("write ", path, ": ", ErrorText(errno)));
  }
  if (!written.ok()) {
    ::unlink(temporary.c_str());
    return written;
  }
  return std::unique_ptr<JoinRecordFile>(new JoinRecordFile(path, std::move(text)));
}

// A launcher whose node was cut off may live on while the next run has begun.
JoinRecordFile::~JoinRecordFile() {
  if (const auto there = ReadPrivate(path_); there.ok() && *there == text_) {
    ::unlink(path_.c_str());
  }
}

absl::StatusOr<SlurmJoinRecord> ReadJoinRecord(const Environment& environment,
                                               const std::string& job) {
  const std::vector<std::string> folders = RecordFolders(environment);
  if (folders.empty()) {
    return absl::NotFoundError(
        "this user has no home directory, where jobs leave their records: "
        "HOME is not set");
  }
  const std::vector<std::string> found = FindRecords(folders.back(), job);
  if (found.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "job ", job, " has left no record in ", folders.back(),
        ": it does not run now, is another user's, was not started with --nnodes MIN:MAX and so "
        "takes no more nodes, or its batch file runs srun fsdprun and not fsdprun itself"));
  }
  if (found.size() > 1) {
    return absl::NotFoundError(absl::StrCat("several clusters have a job ", job, ": ",
                                            absl::StrJoin(found, ", "),
                                            "; remove the record of the one that is over"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadPrivate(found.front()));
  absl::StatusOr<SlurmJoinRecord> record = DecodeJoinRecord(text);
  if (record.ok() && record->job == job) {
    return record;
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "cannot use the record of job ", job, ", ", found.front(), ": ",
      record.ok() ? absl::StrCat("it is that of job ", record->job) : record.status().message()));
}

std::vector<std::string> RecordedJobs(const Environment& environment, const std::string& cluster) {
  const std::vector<std::string> folders = RecordFolders(environment);
  std::vector<std::string> jobs;
  for (const std::string& name : FilesIn(folders.empty() ? "" : folders.back())) {
    absl::string_view job = name;
    if (absl::ConsumePrefix(&job, absl::StrCat(cluster, ".")) && IsJob(job)) {
      jobs.emplace_back(job);
    }
  }
  return jobs;
}

void RemoveJoinRecord(const Environment& environment, const std::string& cluster,
                      const std::string& job) {
  ::unlink(PathOf(RecordFolders(environment), cluster, job).c_str());
}

}  // namespace fsdprun
