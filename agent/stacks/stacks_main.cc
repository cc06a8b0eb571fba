// fsdp-stacks PID: prints what the threads of a process are doing, read from outside. A thread
// stands still while its own registers and frames are read, and no longer; names are looked up
// afterwards. A program of its own, so that whatever is wrong with a worker's files or memory harms
// nobody else; and so that nobody else needs the library.
//
// The first line is `stopped_ns N`: for how long the longest of the threads stood still. Exit code:
// 0, or 1 with a line that says what could not be read and why.

#include <cxxabi.h>
#include <elfutils/libdwfl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cinttypes>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "proto/standard_streams.h"

namespace {

constexpr int kFramesMax = 128;

struct Frame {
  uint64_t pc = 0;
  /// The pc is where a call returns to: the call is before it.
  bool is_return = false;
};

struct ThreadStack {
  pid_t tid = 0;
  std::vector<Frame> frames;
  std::string problem;
};

std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int AddFrame(Dwfl_Frame* state, void* argument) {
  auto* stack = static_cast<ThreadStack*>(argument);
  Frame frame;
  bool is_activation = false;
  Dwarf_Addr pc = 0;
  if (!dwfl_frame_pc(state, &pc, &is_activation)) {
    stack->problem = dwfl_errmsg(-1);
    return DWARF_CB_ABORT;
  }
  frame.pc = pc;
  frame.is_return = !is_activation;
  stack->frames.push_back(frame);
  return stack->frames.size() < kFramesMax ? DWARF_CB_OK : DWARF_CB_ABORT;
}

class Reader {
 public:
  explicit Reader(pid_t pid) : pid_(pid) {}

  /// What went wrong; empty: nothing.
  std::string Open() {
    callbacks_.find_elf = dwfl_linux_proc_find_elf;
    callbacks_.find_debuginfo = dwfl_standard_find_debuginfo;
    dwfl_.reset(dwfl_begin(&callbacks_));
    if (dwfl_ == nullptr) {
      return dwfl_errmsg(-1);
    }
    if (const int error = dwfl_linux_proc_report(dwfl_.get(), pid_); error != 0) {
      return error > 0 ? std::strerror(error) : dwfl_errmsg(-1);
    }
    dwfl_report_end(dwfl_.get(), nullptr, nullptr);
    if (const int error =
            dwfl_linux_proc_attach(dwfl_.get(), pid_, /*assume_ptrace_stopped=*/false);
        error != 0) {
      return error > 0 ? std::strerror(error) : dwfl_errmsg(-1);
    }
    // Unwinding needs these of each file, and no thread should wait for a disk.
    dwfl_getmodules(
        dwfl_.get(),
        [](Dwfl_Module* module, void**, const char*, Dwarf_Addr, void*) -> int {
          Dwarf_Addr bias = 0;
          dwfl_module_eh_cfi(module, &bias);
          return DWARF_CB_OK;
        },
        nullptr, 0);
    return "";
  }

  std::string ReadThreads() {
    const int result = dwfl_getthreads(dwfl_.get(), &Reader::OnThread, this);
    return result == 0 || !stacks_.empty() ? "" : dwfl_errmsg(-1);
  }

  void Print() {
    std::printf("stopped_ns %" PRId64 "\n", stopped_ns_);
    for (const ThreadStack& stack : stacks_) {
      const std::string task =
          "/proc/" + std::to_string(pid_) + "/task/" + std::to_string(stack.tid);
      const std::string waits = FirstLine(task + "/wchan");
      std::printf("thread %d \"%s\"%s%s%s\n", stack.tid, FirstLine(task + "/comm").c_str(),
                  StateOf(task).c_str(), waits.empty() || waits == "0" ? "" : ", in ",
                  waits == "0" ? "" : waits.c_str());
      int number = 0;
      for (const Frame& frame : stack.frames) {
        std::printf("  #%-2d %s\n", number++, Describe(frame).c_str());
      }
      if (!stack.problem.empty() && stack.frames.size() < kFramesMax) {
        std::printf("  (the rest could not be read: %s)\n", stack.problem.c_str());
      }
    }
  }

 private:
  static int OnThread(Dwfl_Thread* thread, void* argument) {
    auto* self = static_cast<Reader*>(argument);
    ThreadStack stack{.tid = dwfl_thread_tid(thread)};
    const int64_t began_ns = NowNs();
    // Stops the thread, and lets it go on.
    if (dwfl_thread_getframes(thread, AddFrame, &stack) < 0 && stack.problem.empty()) {
      stack.problem = dwfl_errmsg(-1);
    }
    self->stopped_ns_ = std::max(self->stopped_ns_, NowNs() - began_ns);
    self->stacks_.push_back(std::move(stack));
    return DWARF_CB_OK;
  }

  static std::string StateOf(const std::string& task) {
    const std::string stat = FirstLine(task + "/stat");
    const size_t name_end = stat.rfind(')');
    return name_end == std::string::npos || name_end + 2 >= stat.size()
               ? ""
               : std::string(" state ") + stat[name_end + 2];
  }

  static std::string Demangled(const char* name) {
    int status = 0;
    const std::unique_ptr<char, decltype(&std::free)> text(
        abi::__cxa_demangle(name, nullptr, nullptr, &status), &std::free);
    return status == 0 && text != nullptr ? text.get() : name;
  }

  std::string Describe(const Frame& frame) {
    const uint64_t pc = frame.pc - (frame.is_return ? 1 : 0);
    std::string& text = described_[pc];
    if (text.empty()) {
      text = Resolve(pc, frame.pc);
    }
    return text;
  }

  std::string Resolve(uint64_t pc, uint64_t shown) {
    char address[32];
    std::snprintf(address, sizeof(address), "0x%016" PRIx64, shown);
    Dwfl_Module* module = dwfl_addrmodule(dwfl_.get(), pc);
    if (module == nullptr) {
      return std::string(address) + " (of no file)";
    }
    GElf_Off offset = 0;
    GElf_Sym symbol;
    const char* name =
        dwfl_module_addrinfo(module, pc, &offset, &symbol, nullptr, nullptr, nullptr);
    const char* file =
        dwfl_module_info(module, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr);
    std::string text = std::string(address) + " " +
                       (name == nullptr ? "?" : Demangled(name) + "+" + std::to_string(offset));
    if (file != nullptr) {
      const char* slash = std::strrchr(file, '/');
      text += std::string(" (") + (slash == nullptr ? file : slash + 1) + ")";
    }
    return text + SourceLine(module, pc);
  }

  static std::string SourceLine(Dwfl_Module* module, uint64_t pc) {
    Dwfl_Line* line = dwfl_module_getsrc(module, pc);
    int number = 0;
    const char* source = line == nullptr
                             ? nullptr
                             : dwfl_lineinfo(line, nullptr, &number, nullptr, nullptr, nullptr);
    return source == nullptr ? "" : std::string(" at ") + source + ":" + std::to_string(number);
  }

  const pid_t pid_;
  Dwfl_Callbacks callbacks_ = {};
  std::unique_ptr<Dwfl, decltype(&dwfl_end)> dwfl_{nullptr, &dwfl_end};
  std::vector<ThreadStack> stacks_;
  std::map<uint64_t, std::string> described_;
  int64_t stopped_ns_ = 0;
};

/// What the kernel's refusals mean to an operator.
std::string Advice(const std::string& problem) {
  return problem.find("not permitted") == std::string::npos
             ? ""
             : "; tracing is forbidden here: set kernel.yama.ptrace_scope to 0 or 1, or give the "
               "container CAP_SYS_PTRACE";
}

int Fail(pid_t pid, const std::string& problem) {
  std::printf("cannot read the stacks of process %d: %s%s\n", pid, problem.c_str(),
              Advice(problem).c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view word = argc == 2 ? argv[1] : "";
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), pid);
  if (error != std::errc() || end != word.data() + word.size() || pid <= 0) {
    std::fprintf(stderr, "usage: fsdp-stacks PID\n");
    return 2;
  }
  ::unsetenv("DEBUGINFOD_URLS");  // Nothing is asked over the network.
  Reader reader(pid);
  if (const std::string problem = reader.Open(); !problem.empty()) {
    return Fail(pid, problem);
  }
  if (const std::string problem = reader.ReadThreads(); !problem.empty()) {
    return Fail(pid, problem);
  }
  reader.Print();
  return std::fflush(stdout) == 0 ? 0 : 1;
}
