#include "formats/files/output_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

constexpr int kFolderNamesTried = 100;

std::vector<std::string> NamesIn(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  if (error) {
    FailOutput("list", folder, error.value(), 0);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string WithoutSlash(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

}  // namespace

OutputFolder::OutputFolder(std::string path, int64_t byte_count, Existing existing)
    : path_(WithoutSlash(std::move(path))), existing_(existing) {
  struct stat stats {};
  if (lstat(path_.c_str(), &stats) == 0) {
    if (existing_ == Existing::kRefuse) {
      throw Error("refused to write " + path_ +
                      ": it is there already; choose another name, or write into it with --force",
                  EEXIST);
    }
    if (!std::filesystem::is_directory(path_)) {
      throw Error("cannot write " + path_ + ": it is no folder; choose another name", ENOTDIR);
    }
  }
  CheckFree(path_, byte_count);
  std::error_code error;
  std::filesystem::create_directories(FolderOf(path_), error);
  if (error) {
    FailOutput("make the folder", FolderOf(path_), error.value(), 0);
  }
  for (int i = 0; i < kFolderNamesTried; ++i) {
    temporary_ = path_ + ".tmp-" + std::to_string(getpid()) + "-" + std::to_string(i);
    if (mkdir(temporary_.c_str(), 0755) == 0) {
      return;
    }
    if (errno != EEXIST) {
      break;
    }
  }
  FailOutput("make the folder", std::exchange(temporary_, {}), errno, 0);
}

OutputFolder::~OutputFolder() {
  if (!temporary_.empty()) {
    std::error_code ignored;
    std::filesystem::remove_all(temporary_, ignored);
  }
}

void OutputFolder::MoveInto(const std::string& last,
                            const std::function<bool(const std::string&)>& is_stale) {
  for (const std::string& name : NamesIn(path_)) {
    if (is_stale(name)) {
      std::filesystem::remove(path_ + "/" + name);
    }
  }
  std::vector<std::string> names = NamesIn(temporary_);
  std::stable_partition(names.begin(), names.end(),
                        [&](const std::string& name) { return name != last; });
  for (const std::string& name : names) {
    RenameOutput(Place(name), path_ + "/" + name, Existing::kReplace);
  }
  std::filesystem::remove(temporary_);
}

void OutputFolder::Publish(const std::string& last,
                           const std::function<bool(const std::string&)>& is_stale) {
  SyncFolder(temporary_);
  if (existing_ == Existing::kReplace && std::filesystem::is_directory(path_)) {
    MoveInto(last, is_stale);
  } else {
    RenameOutput(temporary_, path_, Existing::kRefuse);
  }
  temporary_.clear();
}

}  // namespace fsdprun
