#include "launcher/run/machine.h"

#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <system_error>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "agent/output/stream_plan.h"
#include "base/error_text.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/worker_command.h"
#include "launcher/directory/job_token.h"
#include "launcher/run/devices.h"
#include "launcher/run/script_file.h"
#include "launcher/run/worker_cpus.h"

namespace fsdprun {
namespace {

std::string ValueOr(const Environment& environment, const char* name, const char* fallback) {
  const auto it = environment.find(name);
  return it == environment.end() || it->second.empty() ? fallback : it->second;
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

}  // namespace

MachineFacts DetectMachine(const Environment& environment) {
  const std::string root = MachineRoot(environment);
  MachineFacts facts;
  facts.usable_cpus = std::max(1, static_cast<int>(UsableCpus(root).size()));
  facts.gpus = CountGpus(root, environment);
  facts.intel_gpus = CountIntelGpus(root, environment, IntelGpus::kAll);
  facts.discrete_intel_gpus = CountIntelGpus(root, environment, IntelGpus::kDiscrete);
  return facts;
}

int CountPhysicalCores(const std::string& root) {
  std::set<std::string> cores;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(root + "/sys/devices/system/cpu", error), end;
       !error && entry != end; entry.increment(error)) {
    for (const char* name : {"topology/core_cpus_list", "topology/thread_siblings_list"}) {
      std::string cpus;
      if (std::getline(std::ifstream(entry->path() / name), cpus)) {
        cores.insert(cpus);
        break;
      }
    }
  }
  return static_cast<int>(cores.size());
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

namespace {

absl::Status CheckReadable(const std::string& script, const Environment& environment) {
  if (::access(script.c_str(), R_OK) == 0) {
    return absl::OkStatus();
  }
  const int error = errno;
  const bool is_command = error == ENOENT && script.find('/') == std::string::npos &&
                          FindOnPath(script, environment).ok();
  return absl::NotFoundError(
      absl::StrCat("cannot read the script '", script, "': ", ErrorText(error),
                   is_command ? "; it is a command on PATH: give --no-python to run it" : ""));
}

// Each worker's script: its path may hold ${local_rank}.
std::vector<std::string> ScriptsOf(const LaunchPlan& plan) {
  const bool is_template = plan.program.front().find('$') != std::string::npos;
  const int count = is_template ? plan.nproc_per_node : 1;
  std::vector<std::string> scripts;
  scripts.reserve(static_cast<size_t>(count));
  for (int local_rank = 0; local_rank < count; ++local_rank) {
    scripts.push_back(SubstituteLocalRank(plan.program.front(), local_rank));
  }
  return scripts;
}

// Whether all scripts are ELF programs, which are run without Python.
absl::StatusOr<bool> CheckScripts(const LaunchPlan& plan, const Environment& environment) {
  const std::vector<std::string> scripts = ScriptsOf(plan);
  size_t programs = 0;
  for (const std::string& script : scripts) {
    const ScriptFile file = ReadScriptFile(script);
    RETURN_IF_ERROR(file.is_elf ? CheckExecutable(script) : CheckReadable(script, environment));
    programs += file.is_elf ? 1 : 0;
    if (script == scripts.front() && !file.shell_line.empty() && !absl::EndsWith(script, ".py")) {
      Log(LogLevel::kWarning,
          absl::StrCat(
              "'", script, "' begins with '", file.shell_line,
              "' and is run by Python, as by torchrun; give --no-python to run it itself"));
    }
  }
  if (programs != 0 && programs != scripts.size()) {
    return absl::FailedPreconditionError(
        absl::StrCat("of '", plan.program.front(), "' some are ELF programs and others are not: ",
                     "give --no-python and one program that starts the right one"));
  }
  return programs != 0;
}

}  // namespace

absl::StatusOr<std::string> CheckProgram(const LaunchPlan& plan, const Environment& environment) {
  const std::string& program = plan.program.front();
  if (plan.program_kind == ProgramKind::kExecutable) {
    const absl::Status status = FindOnPath(program, environment);
    return status.ok() ? absl::StatusOr<std::string>(std::string()) : status;
  }
  if (plan.program_kind == ProgramKind::kPythonScript) {
    ASSIGN_OR_RETURN(const bool is_elf, CheckScripts(plan, environment));
    if (is_elf) {
      return std::string();
    }
  }
  std::string python = ValueOr(environment, "PYTHON_EXEC", "python3");
  if (const absl::Status status = FindOnPath(python, environment); !status.ok()) {
    return absl::NotFoundError(
        absl::StrCat(status.message(),
                     "; it is needed to run the script: install Python, set PYTHON_EXEC, or "
                     "give --no-python for a program that is not a script"));
  }
  return python;
}

ProgramKind KindStarted(const LaunchPlan& plan) {
  if (plan.program_kind != ProgramKind::kPythonScript) {
    return plan.program_kind;
  }
  const std::vector<std::string> scripts = ScriptsOf(plan);
  const bool are_programs =
      std::all_of(scripts.begin(), scripts.end(),
                  [](const std::string& script) { return ReadScriptFile(script).is_elf; });
  return are_programs ? ProgramKind::kExecutable : ProgramKind::kPythonScript;
}

absl::StatusOr<std::string> OwnProgram() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) {
    return absl::InternalError(absl::StrCat("cannot read /proc/self/exe: ", error.message()));
  }
  return path.string();
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

namespace {

constexpr char kSharedMemory[] = "/dev/shm";

/// In memory, or nowhere: workers write there while they compute, and the agent reads it between
/// heartbeats; a disk that hangs would stop them.
std::string MakeVitalsDir(const std::string& temporary, const std::string& run_id) {
  const std::string prefix = absl::StrCat("fsdprun_vitals_", run_id, "_");
  for (const std::string& parent : {std::string(kSharedMemory), temporary}) {
    struct statfs info {};
    if (::statfs(parent.c_str(), &info) == 0 && info.f_type == TMPFS_MAGIC) {
      if (absl::StatusOr<std::string> dir = MakeFreshDir(parent, prefix); dir.ok()) {
        return *std::move(dir);
      }
    }
  }
  return "";
}

}  // namespace

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
  dirs.vitals = MakeVitalsDir(temporary, run_id);
  return dirs;
}

}  // namespace fsdprun
