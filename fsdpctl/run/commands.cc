#include "fsdpctl/run/commands.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "launcher/cli/completions.h"
#include "launcher/cli/launch_plan.h"
#include "launcher/cli/nearest.h"
#include "launcher/cli/program_texts.h"
#include "launcher/run/machine.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

constexpr int kUnreadable = 2;

struct Command {
  /// One word or two, separated by a blank.
  const char* name;
  const char* synopsis;
  const char* summary;
  int (*run)(const ControlContext& context);
};

constexpr Command kCommands[] = {
    {"ps", "[options]", "list the jobs of this user on this machine", JobList},
    {"status", "[options]", "show the state of a running job", JobStatus},
    {"top", "[options]", "watch a running job on the whole screen", JobTop},
    {"events", "[options]", "show what has happened to a running job", JobEvents},
    {"logs", "[options]", "show what workers of a job write", JobLogs},
    {"stacks", "[options]", "show what the workers of a job are doing now", JobStacks},
    {"checkpoint now", "[options]", "have the workers of a job save a checkpoint", JobSave},
    {"restart", "[options]", "stop all workers of a job, and start them again", JobRestart},
    {"drain", "NODE [options]", "take a node out of a job", JobDrain},
    {"scale", "MIN:MAX [options]", "change how many nodes a job needs and takes", JobScale},
    {"stop", "[options]", "end a job", JobStop},
    {"slurm submit", "[options] PROGRAM [arguments]",
     "write the batch file of a job from fsdprun's flags, and submit it", SlurmSubmit},
    {"slurm grow", "JOBID --nodes N [options]", "add nodes to a running elastic job", SlurmGrow},
    {"slurm join", "JOBID", "what the batch file of slurm grow runs", SlurmJoin},
    {"doctor", "[options]", "say what here, or between nodes, will hinder a job", Doctor},
    {"ckpt list", "DIR [options]", "list the checkpoints of a folder", CkptList},
    {"ckpt inspect", "PATH [options]", "show what is in a checkpoint or a model", CkptInspect},
    {"ckpt verify", "PATH [options]", "read a checkpoint, and compare its checksums", CkptVerify},
    {"ckpt diff", "A B [options]", "compare the tensors of two checkpoints or models", CkptDiff},
    {"ckpt export", "CKPT OUT [options]", "write the weights of a checkpoint for Hugging Face",
     CkptExport},
    {"ckpt import", "MODEL OUT [options]", "make a checkpoint of a Hugging Face model", CkptImport},
    {"ckpt convert", "CKPT OUT --map MAP [options]", "copy a checkpoint under other keys",
     CkptConvert},
};

std::string Help() {
  std::string text = "usage: fsdpctl COMMAND ...\n\nControls jobs of fsdprun.\n\nCommands:\n";
  for (const Command& command : kCommands) {
    absl::StrAppend(&text, "  fsdpctl ", command.name, " ", command.synopsis, "\n        ",
                    command.summary, "\n");
  }
  absl::StrAppend(&text,
                  "\nfsdpctl COMMAND --help says more; --man prints the command's man page.\n"
                  "--version prints the version, --completion bash, zsh or fish the completions "
                  "of that shell.\n\nExit codes:\n  0 done; 1 it cannot be done, or "
                  "a value means nothing; 2 the command line cannot be read.\n");
  return text;
}

int Unknown(const std::vector<std::string>& words) {
  std::string message = "no command was given";
  if (!words.empty()) {
    const std::string written =
        absl::StrJoin(words.begin(), words.begin() + (words.size() > 1 ? 2 : 1), " ");
    std::vector<std::string> names;
    for (const Command& command : kCommands) {
      names.emplace_back(command.name);
    }
    const std::string nearest = Nearest(names, written);
    message = absl::StrCat("unknown command '", written, "'",
                           nearest.empty() ? "" : absl::StrCat(" (did you mean ", nearest, "?)"));
  }
  std::fprintf(stderr, "fsdpctl: %s; see fsdpctl --help\n", message.c_str());
  return kUnreadable;
}

bool IsHelp(const std::string& word) { return word == "--help" || word == "-h"; }

/// `--completion SHELL` or `--completion=SHELL`.
int Complete(const std::vector<std::string>& words) {
  absl::string_view name = words.front();
  if (!absl::ConsumePrefix(&name, "--completion=")) {
    name = words.size() > 1 ? absl::string_view(words[1]) : "";
  }
  for (const Shell shell : {Shell::kBash, Shell::kZsh, Shell::kFish}) {
    if (name == ShellName(shell)) {
      std::fputs(ControlCompletionScript(shell).c_str(), stdout);
      return 0;
    }
  }
  std::fprintf(stderr, "fsdpctl: --completion: '%s' is not bash, zsh or fish\n",
               std::string(name).c_str());
  return kUnreadable;
}

/// The path of a program that was installed beside this one; else its name, for PATH.
std::string Beside(const char* name) {
  std::error_code error;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::string path = (own.parent_path() / name).string();
  return !error && ::access(path.c_str(), X_OK) == 0 ? path : name;
}

}  // namespace

int RunControl(int argc, char** argv, char** environ_pointer) {
  // An ignored SIGCHLD is inherited across exec; then nobody could say how squeue and sbatch ended.
  ::signal(SIGCHLD, SIG_DFL);
  const std::vector<std::string> words(argv + 1, argv + argc);
  const std::string first = words.empty() ? "" : words.front();
  // Also `fsdpctl slurm --help`.
  if (IsHelp(first) ||
      (words.size() == 2 && (first == "slurm" || first == "ckpt") && IsHelp(words.back()))) {
    std::fputs(Help().c_str(), stdout);
    return 0;
  }
  if (first == "--version") {
    std::printf("fsdpctl %s\n", kRelease);
    return 0;
  }
  if (first == "--completion" || absl::StartsWith(first, "--completion=")) {
    return Complete(words);
  }
  for (const Command& command : kCommands) {
    const std::vector<std::string> name = absl::StrSplit(command.name, ' ');
    if (words.size() >= name.size() && std::equal(name.begin(), name.end(), words.begin())) {
      const ControlContext context{
          {words.begin() + static_cast<std::ptrdiff_t>(name.size()), words.end()},
          ReadEnvironment(environ_pointer),
          Beside("fsdpctl"),
          Beside("fsdprun")};
      // gRPC's own log lines name its source files; we report what matters ourselves. Not for the
      // programs that are started, which get the environment as it was read.
      ::setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
      return command.run(context);
    }
  }
  return Unknown(words);
}

}  // namespace fsdprun
