#include "agent/local/log_paths.h"

#include "absl/strings/str_cat.h"

namespace fsdprun {
namespace {

const char* FileName(keeper::Stream stream) {
  return stream == keeper::Stream::kStdout ? "stdout.log" : "stderr.log";
}

std::string Below(const std::string& root, const RankAssignment& assignment) {
  return root.empty() ? "" : absl::StrCat(root, "/", AttemptName(assignment));
}

std::string Below(const std::string& root, const RankAssignment& assignment, int local_rank) {
  return root.empty() ? "" : absl::StrCat(Below(root, assignment), "/", local_rank);
}

std::string FileIn(const std::string& directory, const std::string& name) {
  return directory.empty() ? "" : absl::StrCat(directory, "/", name);
}

}  // namespace

StreamSet SetOf(keeper::Stream stream) {
  return stream == keeper::Stream::kStdout ? kOutStream : kErrorStream;
}

std::string AttemptDir(const RunDirs& dirs, const RankAssignment& assignment) {
  return Below(dirs.logs, assignment);
}

std::string WorkerDir(const RunDirs& dirs, const RankAssignment& assignment, int local_rank) {
  return Below(dirs.logs, assignment, local_rank);
}

std::string ErrorFilePath(const RunDirs& dirs, const RankAssignment& assignment, int local_rank) {
  return FileIn(WorkerDir(dirs, assignment, local_rank), "error.json");
}

std::string WrittenErrorFilePath(const RunDirs& dirs, const OutputOptions& output,
                                 const RankAssignment& assignment, int local_rank) {
  return HasWorkerFolders(output)
             ? ErrorFilePath(dirs, assignment, local_rank)
             : FileIn(AttemptDir(dirs, assignment), absl::StrCat("error_", local_rank, ".json"));
}

std::string StreamPath(const RunDirs& dirs, const RankAssignment& assignment, int local_rank,
                       keeper::Stream stream, StreamFile file) {
  if (file == StreamFile::kNone) {
    return "/dev/null";
  }
  const std::string& root = file == StreamFile::kLog ? dirs.logs : dirs.spool;
  return FileIn(Below(root, assignment, local_rank), FileName(stream));
}

std::string VitalsPath(const RunDirs& dirs, Generation generation, int local_rank) {
  return FileIn(dirs.vitals, absl::StrCat(generation.value(), ".", local_rank));
}

std::string FilteredPath(const RunDirs& dirs, const RankAssignment& assignment,
                         keeper::Stream stream) {
  return FileIn(AttemptDir(dirs, assignment), absl::StrCat("filtered_", FileName(stream)));
}

}  // namespace fsdprun
