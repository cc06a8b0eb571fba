#include "launcher/run/program_lookup.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

/// Where there is no PATH, as the C library has it.
constexpr char kDefaultPath[] = "/bin:/usr/bin";

// Returns an errno, 0 if it is one.
int CheckProgramAt(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return errno;
  }
  if (!S_ISREG(info.st_mode)) {
    return EACCES;
  }
  return ::access(path.c_str(), X_OK) == 0 ? 0 : errno;
}

}  // namespace

bool IsAbsence(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
    case EACCES:
    case ELOOP:
    case ENAMETOOLONG:
      return true;
    default:
      return false;
  }
}

absl::StatusOr<std::string> LocateProgram(const std::string& name, const Environment& environment) {
  const auto path = environment.find("PATH");
  const std::string folders = path == environment.end() ? kDefaultPath : path->second;
  std::string trouble;
  for (const absl::string_view folder : absl::StrSplit(folders, ':')) {
    std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    const int error = CheckProgramAt(candidate);
    if (error == 0) {
      return candidate;
    }
    if (trouble.empty() && !IsAbsence(error)) {
      trouble = absl::StrCat(candidate, ": ", ErrorText(error));
    }
  }
  if (!trouble.empty()) {
    return absl::UnavailableError(absl::StrCat(
        "cannot start ", name, ": of the folders on PATH that answer none has it, and ",
        "one cannot be asked (", trouble, ")"));
  }
  return absl::NotFoundError(absl::StrCat("cannot start ", name, ": no such program on PATH"));
}

ProgramLookup::ProgramLookup(EventLoop& loop, std::function<Found()> find)
    : find_(std::move(find)), files_(loop) {}

void ProgramLookup::Use(std::function<void(const Found&)> use) {
  if (!program_.empty()) {
    use(program_);
    return;
  }
  use_ = std::move(use);
  is_asked_anew_ = is_searching_;
  if (!is_searching_) {
    Search();
  }
}

void ProgramLookup::Search() {
  is_searching_ = true;
  const auto found = std::make_shared<Found>(absl::UnknownError("not looked for"));
  files_.Run([found, find = find_] { *found = find(); },
             [this, found] { OnFound(std::move(*found)); });
}

void ProgramLookup::OnFound(Found found) {
  is_searching_ = false;
  program_ = found.value_or("");
  if (!found.ok() && std::exchange(is_asked_anew_, false) && use_ != nullptr) {
    Search();
    return;
  }
  if (found.ok()) {
    found_before_ = program_;
  } else if (absl::IsNotFound(found.status()) && !found_before_.empty()) {
    found = absl::UnavailableError(
        absl::StrCat(found.status().message(), ", where it was found before, as ", found_before_));
  }
  if (const auto use = std::exchange(use_, nullptr); use != nullptr) {
    use(found);
  }
}

}  // namespace fsdprun
