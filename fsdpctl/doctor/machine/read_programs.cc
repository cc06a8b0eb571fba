#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "fsdpctl/doctor/machine/probe.h"
#include "fsdpctl/doctor/machine/read_facts.h"
#include "launcher/directory/job_token.h"
#include "launcher/directory/user_folder.h"
#include "launcher/directory/user_secret.h"
#include "launcher/run/devices.h"
#include "launcher/run/machine.h"
#include "launcher/run/program_lookup.h"
#include "proto/release.h"

namespace fsdprun::doctor {
namespace {

constexpr Duration kProgramPatience = std::chrono::seconds(3);
/// PyTorch itself is not loaded: that takes seconds. Nothing is taken from the working directory.
constexpr char kAskPython[] =
    "import sys\n"
    "if sys.path[:1] == ['']: sys.path.pop(0)\n"
    "import importlib.metadata as m\n"
    "print(sys.version.split()[0])\n"
    "try: print(m.version('torch'))\n"
    "except m.PackageNotFoundError: pass\n";

/// Folders of PATH may be on a file system that hangs.
absl::StatusOr<std::string> Locate(const std::string& name, const Environment& environment) {
  return RunProbe([&] { return LocateProgram(name, environment).value_or(""); }, kProgramPatience);
}

bool IsProgram(const std::string& path) { return ::access(path.c_str(), X_OK) == 0; }

void ReadToken(const TokenChoice& choice, const Environment& environment,
               InstallationFacts* facts) {
  facts->takes_anybody = choice.takes_anybody;
  // Its file may be on a file system that hangs. The answer is `+` and the token, or `-` and why.
  const absl::StatusOr<std::string> answer = RunProbe(
      [&] {
        const absl::StatusOr<std::string> token = GivenToken(environment, choice.token_file);
        return token.ok() ? absl::StrCat("+", *token) : absl::StrCat("-", token.status().message());
      },
      kProgramPatience);
  if (!answer.ok()) {
    facts->token_error = absl::StrCat("cannot read the token: ", answer.status().message());
  } else if (absl::StartsWith(*answer, "+")) {
    facts->token_length = answer->size() - 1;
  } else {
    facts->token_error = answer->substr(1);
  }
}

void ReadSecret(const Environment& environment, InstallationFacts* facts) {
  const std::vector<std::string> folders = UserFolders(environment);
  if (folders.empty()) {
    facts->secret_error = "this user has no home directory for a secret: HOME is not set";
    return;
  }
  facts->secret_path = folders.back() + "/secret";
  if (ReadFolder(folders.back()).hangs) {
    facts->secret_error = absl::StrCat("the file system of ", folders.back(), " does not answer");
    return;
  }
  struct stat info {};
  facts->has_secret = ::lstat(facts->secret_path.c_str(), &info) == 0;
  if (facts->has_secret) {
    if (const auto secret = LoadUserSecret(environment); !secret.ok()) {
      facts->secret_error = std::string(secret.status().message());
    }
    return;
  }
  // It would be made below the innermost folder that is there.
  std::string folder = folders.back();
  while (folder.size() > 1 && ::access(folder.c_str(), F_OK) != 0) {
    folder = folder.substr(0, folder.rfind('/'));
  }
  if (!folder.empty() && ::access(folder.c_str(), W_OK | X_OK) != 0) {
    facts->secret_error = absl::StrCat("cannot keep a secret of this user in ", facts->secret_path,
                                       ": ", folder, " cannot be written");
  }
}

}  // namespace

PythonFacts ReadPython(const std::string& python, const Environment& environment) {
  PythonFacts facts{.name = python.empty() ? "python3" : python,
                    .has_gpus = CountGpus("", environment) > 0};
  facts.py_spy = Locate("py-spy", environment).value_or("");
  const absl::StatusOr<std::string> path = absl::StrContains(facts.name, '/')
                                               ? absl::StatusOr<std::string>(facts.name)
                                               : Locate(facts.name, environment);
  facts.path = path.value_or("");
  if (facts.path.empty()) {
    return facts;
  }
  const absl::StatusOr<std::string> answer =
      AskProgram({facts.path, "-c", kAskPython}, environment, kProgramPatience);
  if (!answer.ok()) {
    facts.trouble = std::string(answer.status().message());
    return facts;
  }
  const std::vector<std::string> lines = absl::StrSplit(*answer, '\n');
  facts.version = lines.front();
  facts.torch = lines.size() > 1 ? lines[1] : "";
  return facts;
}

InstallationFacts ReadInstallation(const TokenChoice& token, const Environment& environment) {
  InstallationFacts facts{.release = kRelease};
  const std::filesystem::path own = OwnProgram().value_or("");
  facts.folder = own.parent_path().string();
  facts.has_keeper = IsProgram(facts.folder + "/fsdp-keeper");
  facts.has_launcher = IsProgram(facts.folder + "/fsdprun");
  if (facts.has_launcher) {
    const std::string said =
        AskProgram({facts.folder + "/fsdprun", "--version"}, environment, kProgramPatience)
            .value_or("");
    absl::string_view release = absl::StripSuffix(said, "\n");
    if (absl::ConsumePrefix(&release, "fsdprun ")) {
      facts.launcher_release = std::string(release);
    }
  }
  ReadToken(token, environment, &facts);
  ReadSecret(environment, &facts);
  return facts;
}

}  // namespace fsdprun::doctor
