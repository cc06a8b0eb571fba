#include "agent/local/stack_reader.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_text.h"
#include "base/spawn.h"
#include "base/unique_fd.h"

namespace fsdprun {
namespace {

/// Of the first line of fsdp-stacks.
constexpr char kStopped[] = "stopped_ns ";

struct ProgramOutput {
  std::string text;
  /// Why it is not all; empty: it is.
  std::string problem;
};

/// Its output, until it ends or the deadline, at which it is killed.
std::string ReadUntil(int fd, MonoTime deadline, bool* is_late) {
  std::string text;
  while (text.size() < StackReader::kMaxTextBytes) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - MonoNow()).count();
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    const int count = ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (count == 0) {
      *is_late = true;
      break;
    }
    char buffer[16 << 10];
    const ssize_t got = count < 0 ? -1 : ::read(fd, buffer, sizeof(buffer));
    if (got == 0 || (got < 0 && errno != EINTR)) {
      break;
    }
    text.append(buffer, static_cast<size_t>(std::max<ssize_t>(got, 0)));
  }
  return text;
}

ProgramOutput RunProgram(const std::vector<std::string>& command, Duration limit) {
  const MonoTime deadline = MonoNow() + limit;
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return {"", absl::StrCat("make a pipe for ", command[0], ": ", ErrorText(errno))};
  }
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  std::vector<std::string> environment = OwnEnvironment();
  std::erase_if(environment, [](const std::string& variable) {
    return absl::StartsWith(variable, "DEBUGINFOD_URLS=");  // Nothing is asked over the network.
  });
  const absl::StatusOr<pid_t> pid =
      SpawnDetached({.path = command[0],
                     .command = command,
                     .environment = environment,
                     .descriptors = {{to.get(), STDOUT_FILENO}, {to.get(), STDERR_FILENO}}});
  to.reset();
  if (!pid.ok()) {
    return {"", std::string(pid.status().message())};
  }
  bool is_late = false;
  ProgramOutput output{.text = ReadUntil(from.get(), deadline, &is_late), .problem = ""};
  if (is_late || output.text.size() >= StackReader::kMaxTextBytes) {
    ::kill(*pid, SIGKILL);
  }
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (is_late) {
    output.problem = absl::StrCat(command[0], " has not ended within ", ToSeconds(limit), " s");
  } else if (WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    output.problem = absl::StrCat(command[0], " ended with ", WEXITSTATUS(status));
  }
  return output;
}

std::string Whole(const std::string& path) {
  std::ifstream file(path);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

std::string ExecutableOf(pid_t pid) {
  std::string path(4096, '\0');
  const ssize_t size =
      ::readlink(absl::StrCat("/proc/", pid, "/exe").c_str(), path.data(), path.size());
  path.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return path;
}

void AddProblem(const ProgramOutput& output, v1::WorkerStacks* stacks) {
  if (!output.problem.empty()) {
    const std::string said(absl::StripTrailingAsciiWhitespace(
        stacks->text().empty() ? absl::string_view(output.text).substr(0, 512) : ""));
    stacks->set_problem(absl::StrCat(stacks->problem(), stacks->problem().empty() ? "" : "; ",
                                     output.problem, said.empty() ? "" : ": ", said));
  }
}

void AddReader(const std::string& name, v1::WorkerStacks* stacks) {
  stacks->set_reader(absl::StrCat(stacks->reader(), stacks->reader().empty() ? "" : ", ", name));
}

void AddPython(const std::string& program, pid_t pid, Duration limit, v1::WorkerStacks* stacks) {
  const ProgramOutput output = RunProgram({program, "dump", "--pid", absl::StrCat(pid)}, limit);
  if (output.problem.empty()) {
    AddReader("py-spy", stacks);
    stacks->set_text(output.text);
  }
  AddProblem(output, stacks);
}

void AddNative(const std::string& program, pid_t pid, Duration limit, v1::WorkerStacks* stacks) {
  const ProgramOutput output = RunProgram({program, absl::StrCat(pid)}, limit);
  absl::string_view text = output.text;
  if (absl::ConsumePrefix(&text, kStopped)) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(text, absl::MaxSplits('\n', 1));
    int64_t stopped_ns = 0;
    if (absl::SimpleAtoi(parts.first, &stopped_ns)) {
      stacks->set_stopped_ns(stopped_ns);
    }
    AddReader("fsdp-stacks", stacks);
    stacks->set_text(absl::StrCat(stacks->text(), stacks->text().empty() ? "" : "\n",
                                  std::string(parts.second)));
  }
  AddProblem(output, stacks);
}

v1::WorkerStacks ReadStacks(const StackReader::Programs& programs, const ReadWorker& worker,
                            Duration limit) {
  v1::WorkerStacks stacks;
  stacks.set_rank(worker.rank);
  stacks.set_pid(worker.pid);
  const bool is_python =
      IsPython(ExecutableOf(worker.pid), Whole(absl::StrCat("/proc/", worker.pid, "/maps")));
  if (is_python && !programs.python.empty()) {
    AddPython(programs.python, worker.pid, limit, &stacks);
  } else if (is_python) {
    stacks.set_problem(
        "py-spy, which reads stacks of Python, is not on the agent's PATH; install "
        "it (pip install py-spy)");
  }
  if (!programs.native.empty()) {
    AddNative(programs.native, worker.pid, limit, &stacks);
  } else if (stacks.text().empty()) {
    stacks.set_problem("fsdp-stacks is not beside fsdp-keeper; install it there");
  }
  return stacks;
}

}  // namespace

void StackReader::Read(const std::vector<ReadWorker>& workers,
                       const std::function<void(v1::WorkerStacks)>& on_read,
                       const std::function<void()>& then) {
  for (const ReadWorker& worker : workers) {
    auto stacks = std::make_shared<v1::WorkerStacks>();
    thread_.Run([programs = programs_, limit = limit_, worker,
                 stacks] { *stacks = ReadStacks(programs, worker, limit); },
                [stacks, on_read] { on_read(*stacks); });
  }
  thread_.Run([] {}, then);
}

StackReader::Programs FindStackPrograms(const std::string& keeper_path, const std::string& path) {
  const auto runnable = [](std::string file) {
    return ::access(file.c_str(), X_OK) == 0 ? std::move(file) : std::string();
  };
  StackReader::Programs programs;
  const size_t slash = keeper_path.rfind('/');
  programs.native = runnable(absl::StrCat(
      slash == std::string::npos ? "" : keeper_path.substr(0, slash + 1), "fsdp-stacks"));
  for (const absl::string_view folder : absl::StrSplit(path, ':', absl::SkipEmpty())) {
    if (programs.python.empty()) {
      programs.python = runnable(absl::StrCat(std::string(folder), "/py-spy"));
    }
  }
  return programs;
}

bool IsPython(const std::string& executable, const std::string& maps) {
  const size_t slash = executable.rfind('/');
  const std::string name = slash == std::string::npos ? executable : executable.substr(slash + 1);
  return absl::StartsWith(name, "python") || maps.find("/libpython") != std::string::npos;
}

}  // namespace fsdprun
