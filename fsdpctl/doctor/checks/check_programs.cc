#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

constexpr size_t kShortToken = 16;

void CheckTorch(const PythonFacts& facts, Findings* findings) {
  if (facts.torch.empty()) {
    findings->Note("torch", {absl::StrCat(facts.path, " has no PyTorch"),
                             "scripts that import torch fail (programs without Python do not mind)",
                             "name another interpreter: `export PYTHON_EXEC=...`, or activate the "
                             "environment that has it"});
  } else if (facts.has_gpus && absl::EndsWith(facts.torch, "+cpu")) {
    findings->Warn("torch", {absl::StrCat("PyTorch ", facts.torch,
                                          " is for CPUs only, and there "
                                          "are GPUs"),
                             "workers train on CPUs, or fail", "install PyTorch for CUDA"});
  } else {
    findings->Ok("torch", absl::StrCat("PyTorch ", facts.torch));
  }
}

void CheckToken(const InstallationFacts& facts, Findings* findings) {
  if (facts.takes_anybody) {
    findings->Note("token",
                   {"--no-token is given", "whoever reaches a job's port may join it and stop it",
                    "leave --no-token out"});
  } else if (!facts.token_error.empty()) {
    findings->Problem("token", {facts.token_error, "jobs with this token do not start",
                                "a random text: `export FSDPRUN_TOKEN=$(openssl rand -hex 32)`"});
  } else if (facts.token_length > 0 && facts.token_length < kShortToken) {
    findings->Warn("token", {absl::StrCat("the job token has ", facts.token_length, " characters"),
                             "it can be guessed by who hears a proof of it",
                             "a random text: `export FSDPRUN_TOKEN=$(openssl rand -hex 32)`"});
  } else if (facts.token_length > 0) {
    findings->Ok("token", "a job token is given");
  } else if (!facts.secret_error.empty()) {
    findings->Problem("token",
                      {facts.secret_error, "jobs of several nodes have no token then", ""});
  } else {
    findings->Ok("token", facts.has_secret
                              ? absl::StrCat("the token is this user's secret, ", facts.secret_path)
                              : absl::StrCat("the token will be this user's secret, ",
                                             facts.secret_path, ", made at first use"));
  }
}

}  // namespace

std::vector<Finding> CheckPython(const PythonFacts& facts) {
  Findings findings(CheckGroup::kPython);
  if (facts.path.empty()) {
    findings.Note("interpreter", {absl::StrCat("there is no ", facts.name, " on PATH"),
                                  "scripts cannot be started (programs without Python can)",
                                  "name one: `export PYTHON_EXEC=/path/to/python`"});
    return findings.Take();
  }
  if (!facts.trouble.empty()) {
    findings.Note("interpreter",
                  {absl::StrCat(facts.path, " did not say what it is: ", facts.trouble),
                   "workers may start as slowly, or not at all",
                   absl::StrCat("try `", facts.path, " -c 'import torch'`")});
    return findings.Take();
  }
  findings.Ok("interpreter", absl::StrCat(facts.path, ", Python ", facts.version));
  CheckTorch(facts, &findings);
  if (facts.py_spy.empty()) {
    findings.Note("py_spy",
                  {"py-spy is not on PATH", "stacks of Python workers that hang cannot be shown",
                   "`pip install py-spy`"});
  } else {
    findings.Ok("py_spy", absl::StrCat("py-spy is ", facts.py_spy));
  }
  return findings.Take();
}

std::vector<Finding> CheckInstallation(const InstallationFacts& facts) {
  Findings findings(CheckGroup::kFsdprun);
  if (!facts.has_keeper || !facts.has_launcher) {
    findings.Problem(
        "programs",
        {absl::StrCat("there is no ", facts.has_keeper ? "fsdprun" : "fsdp-keeper",
                      " beside fsdpctl in ", facts.folder),
         "no job can be started from here", "install all programs of one build into one folder"});
  } else if (!facts.launcher_release.empty() && facts.launcher_release != facts.release) {
    findings.Problem("programs",
                     {absl::StrCat("fsdpctl is of release ", facts.release,
                                   ", and fsdprun beside it of ", facts.launcher_release),
                      "they may not understand each other",
                      "install all programs of one build into one folder"});
  } else {
    findings.Ok("programs", absl::StrCat("fsdprun ", facts.release, " in ", facts.folder));
  }
  CheckToken(facts, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
