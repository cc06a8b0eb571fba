#include <functional>
#include <map>
#include <string>

#include "formats/checkpoint/commit.h"
#include "formats/checkpoint/file_system.h"
#include "formats/checkpoint/step_list.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/checkpoint/resume.h"

namespace fsdprun::checkpoint {
void CheckReplaceable(const std::string& dir, const std::string& run,
                      const std::function<bool(int64_t step)>& is_saved) {
  std::map<int64_t, std::string> saved;
  for (const StepEntry& entry : FindSteps(WithoutTrailingSlash(dir))) {
    if (is_saved(entry.step)) {
      saved[entry.step] = entry.path;
    }
  }
  for (const auto& [step, path] : saved) {
    CheckReplaceable(path, run);
  }
}

void CheckWritable(const std::string& dir) {
  FileSystem file_system;
  const std::string directory = WithoutTrailingSlash(dir);
  CheckIo(file_system.MakeDirectory(directory), "make the directory", directory);
  const std::string path = directory + "/" + ProbeName();
  const std::string bytes(4096, '\0');
  const auto needed = static_cast<int64_t>(bytes.size());
  int error = 0;
  {
    FileDescriptor file;
    error = file_system.Create(path, file);
    error = error != 0 ? error : file_system.Write(file, path, bytes.data(), bytes.size());
    error = error != 0 ? error : file_system.Sync(file, path);
  }
  const std::string message =
      error != 0 ? DescribeIoError("write", path, error, needed) : std::string();
  file_system.RemoveTree(path);
  if (!message.empty()) {
    throw CheckpointError(message, error);
  }
}

}  // namespace fsdprun::checkpoint
