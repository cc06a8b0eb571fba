#include "launcher/run/machine.h"

#include <dirent.h>
#include <sched.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/output/stream_plan.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "launcher/directory/job_token.h"

namespace fsdprun {
namespace {

std::string ValueOr(const Environment& environment, const char* name, const char* fallback) {
  const auto it = environment.find(name);
  return it == environment.end() || it->second.empty() ? fallback : it->second;
}

int CountGpus() {
  DIR* devices = ::opendir("/dev");
  if (devices == nullptr) {
    return 0;
  }
  int count = 0;
  while (const dirent* entry = ::readdir(devices)) {
    absl::string_view name = entry->d_name;
    count +=
        absl::ConsumePrefix(&name, "nvidia") && !name.empty() &&
                std::all_of(name.begin(), name.end(), [](char c) { return absl::ascii_isdigit(c); })
            ? 1
            : 0;
  }
  ::closedir(devices);
  return count;
}

// OK unless the first line of the script at `path` names an interpreter that cannot be run.
absl::Status CheckInterpreter(const std::string& path) {
  constexpr size_t kLongestLine = 256;  // the kernel's own limit
  char line[kLongestLine] = "";
  std::ifstream(path).getline(line, sizeof(line));
  absl::string_view rest = line;
  if (!absl::ConsumePrefix(&rest, "#!")) {
    return absl::OkStatus();
  }
  rest = absl::StripLeadingAsciiWhitespace(rest);
  const std::string interpreter(rest.substr(0, rest.find_first_of(" \t\r")));
  if (interpreter.empty() || ::access(interpreter.c_str(), X_OK) == 0) {
    return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat("cannot run '", path, "': its interpreter '", interpreter,
                                          "': ", ErrorText(errno),
                                          "; correct the first line of the script"));
}

// OK if `path` can be executed.
absl::Status CheckExecutable(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) {
    return absl::NotFoundError(absl::StrCat("cannot run '", path, "': ", ErrorText(errno)));
  }
  if (S_ISDIR(info.st_mode)) {
    return absl::PermissionDeniedError(absl::StrCat("cannot run '", path, "': it is a directory"));
  }
  if (::access(path.c_str(), X_OK) != 0) {
    return absl::PermissionDeniedError(absl::StrCat("cannot run '", path, "': ", ErrorText(errno),
                                                    "; make it executable (chmod +x)"));
  }
  return CheckInterpreter(path);
}

absl::Status FindOnPath(const std::string& name, const Environment& environment) {
  if (name.find('/') != std::string::npos) {
    return CheckExecutable(name);
  }
  const std::string path = ValueOr(environment, "PATH", "/usr/local/bin:/usr/bin:/bin");
  for (absl::string_view folder : absl::StrSplit(path, ':')) {
    const std::string candidate = absl::StrCat(folder.empty() ? "." : folder, "/", name);
    if (CheckExecutable(candidate).ok()) {
      return absl::OkStatus();
    }
  }
  std::string message = absl::StrCat("cannot run '", name, "': it is not on PATH");
  if (::access(name.c_str(), F_OK) == 0) {
    absl::StrAppend(&message, "; for the file in this directory give ./", name);
  }
  return absl::NotFoundError(message);
}

absl::StatusOr<std::string> MakeFreshDir(const std::string& base, const std::string& prefix) {
  std::error_code error;
  std::filesystem::create_directories(base, error);
  if (error) {
    return absl::UnavailableError(absl::StrCat("cannot make the log directory '", base, "': ",
                                               error.message(), "; choose another with --log-dir"));
  }
  const std::string path = absl::StrCat(std::filesystem::absolute(base).lexically_normal().string(),
                                        "/", prefix, RandomHex(4));
  if (::mkdir(path.c_str(), 0700) != 0) {
    return absl::UnavailableError(absl::StrCat("cannot make the log directory '", path,
                                               "': ", ErrorText(errno),
                                               "; choose another with --log-dir"));
  }
  return path;
}

}  // namespace

int VisibleGpus(int devices, absl::string_view list) {
  int visible = 0;
  for (absl::string_view entry : absl::StrSplit(list, ',')) {
    entry = absl::StripAsciiWhitespace(entry);
    int index = 0;
    if (entry.empty() || (absl::SimpleAtoi(entry, &index) && (index < 0 || index >= devices))) {
      break;
    }
    ++visible;
  }
  return devices == 0 ? 0 : visible;
}

MachineFacts DetectMachine(const Environment& environment) {
  MachineFacts facts;
  cpu_set_t usable;
  CPU_ZERO(&usable);
  if (::sched_getaffinity(0, sizeof(usable), &usable) == 0) {
    facts.usable_cpus = CPU_COUNT(&usable);
  } else {
    facts.usable_cpus = std::max(1, static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN)));
  }
  facts.gpus = CountGpus();
  if (const auto it = environment.find("CUDA_VISIBLE_DEVICES"); it != environment.end()) {
    facts.gpus = VisibleGpus(facts.gpus, it->second);
  }
  return facts;
}

Environment ReadEnvironment(char** environ_pointer) {
  Environment environment;
  for (char** entry = environ_pointer; entry != nullptr && *entry != nullptr; ++entry) {
    const char* equals = std::strchr(*entry, '=');
    if (equals != nullptr) {
      environment.emplace(std::string(*entry, static_cast<size_t>(equals - *entry)), equals + 1);
    }
  }
  return environment;
}

absl::Status CheckVisibleDevices(const LaunchPlan& plan, const Environment& environment) {
  const auto devices = environment.find("CUDA_VISIBLE_DEVICES");
  if (!plan.has_virtual_local_rank || devices == environment.end()) {
    return absl::OkStatus();
  }
  const auto count = 1 + std::count(devices->second.begin(), devices->second.end(), ',');
  return count >= plan.nproc_per_node
             ? absl::OkStatus()
             : absl::FailedPreconditionError(absl::StrCat(
                   "--virtual-local-rank: CUDA_VISIBLE_DEVICES='", devices->second, "' has ", count,
                   " devices for the ", plan.nproc_per_node, " workers of --nproc-per-node"));
}

absl::StatusOr<std::string> CheckProgram(const LaunchPlan& plan, const Environment& environment) {
  const std::string& program = plan.program.front();
  if (plan.program_kind == ProgramKind::kExecutable) {
    const absl::Status status = FindOnPath(program, environment);
    return status.ok() ? absl::StatusOr<std::string>(std::string()) : status;
  }
  std::string python = ValueOr(environment, "PYTHON_EXEC", "python3");
  if (const absl::Status status = FindOnPath(python, environment); !status.ok()) {
    return absl::NotFoundError(
        absl::StrCat(status.message(),
                     "; it is needed to run the script: install Python, set PYTHON_EXEC, or "
                     "give --no-python for a program that is not a script"));
  }
  if (plan.program_kind == ProgramKind::kPythonScript && ::access(program.c_str(), R_OK) != 0) {
    const int error = errno;
    const bool is_command = error == ENOENT && program.find('/') == std::string::npos &&
                            FindOnPath(program, environment).ok();
    return absl::NotFoundError(
        absl::StrCat("cannot read the script '", program, "': ", ErrorText(error),
                     is_command ? "; it is a command on PATH: give --no-python to run it" : ""));
  }
  return python;
}

absl::StatusOr<RunDirs> MakeRunDirs(const LaunchPlan& plan, const std::string& run_id,
                                    const Environment& environment) {
  RunDirs dirs;
  const std::string temporary = ValueOr(environment, "TMPDIR", "/tmp");
  if (plan.output.has_directory) {
    const bool is_temporary = plan.log_dir.empty();
    ASSIGN_OR_RETURN(dirs.logs,
                     MakeFreshDir(is_temporary ? temporary : plan.log_dir,
                                  absl::StrCat(is_temporary ? "fsdprun_" : "", run_id, "_")));
  }
  if (NeedsSpool(plan.output, plan.nproc_per_node)) {
    // Without it that output goes to the console through memory.
    dirs.spool = MakeFreshDir(temporary, absl::StrCat("fsdprun_spool_", run_id, "_")).value_or("");
  }
  return dirs;
}

}  // namespace fsdprun
