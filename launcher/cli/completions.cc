#include "launcher/cli/completions.h"

#include <initializer_list>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "launcher/cli/completion_functions.h"

namespace fsdprun {
namespace {

// The shell completes what follows `fsdprun chaos` with the options of that command.
constexpr char kBashOfLauncher[] = R"(_fsdprun() {
  local line=${COMP_LINE:0:COMP_POINT} words
  read -ra words <<<"$line"
  if [[ ${words[1]} == chaos && ( ${#words[@]} -gt 2 || $line == *[[:blank:]] ) ]]; then
    _fsdprun_chaos
  else
    _fsdprun_launch
  fi
}
)";

constexpr char kZshOfLauncher[] = R"(_fsdprun() {
  if [[ $CURRENT -gt 2 && $words[2] == chaos ]]; then
    shift words
    (( CURRENT -= 1 ))
    _fsdprun_chaos
  else
    _fsdprun_launch
  fi
}
)";

/// The function `_fsdprun`, and what it calls.
std::string OfLauncher(std::string (*function)(CliProgram program), const char* dispatcher) {
  return absl::StrCat(
      absl::StrReplaceAll(function(CliProgram::kFsdprun), {{"_fsdprun()", "_fsdprun_launch()"}}),
      function(CliProgram::kChaos), dispatcher);
}

std::string Bash(CliProgram program) {
  const std::string functions = program == CliProgram::kFsdprun
                                    ? OfLauncher(BashFunction, kBashOfLauncher)
                                    : BashFunction(program);
  return absl::StrCat(functions, "complete -o default -F _", ProgramIdentifier(program), " ",
                      ProgramName(program), "\n");
}

// As a file of fpath it is the function itself, the first time it is called.
constexpr char kZshEnd[] = R"(if [[ $funcstack[1] == _IDENTIFIER ]]; then
  _IDENTIFIER "$@"
elif (( $+functions[compdef] )); then
  compdef _IDENTIFIER PROGRAM
fi
)";

std::string ZshEnd(const std::string& program, const std::string& identifier) {
  return absl::StrReplaceAll(kZshEnd, {{"PROGRAM", program}, {"IDENTIFIER", identifier}});
}

/// How the shell is told of the script, and what of it has to stand in front.
std::string Begin(const std::string& program, Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return absl::StrCat("# Completions of ", program, " for bash: source <(", program,
                          " --completion bash)\n");
    case Shell::kZsh:
      return absl::StrCat("#compdef ", program, "\n# Completions of ", program,
                          " for zsh: source <(", program, " --completion zsh)\n");
    case Shell::kFish:
      return absl::StrCat("# Completions of ", program, " for fish: ", program,
                          " --completion fish | source\n");
  }
  return "";
}

// FIRST: all first words; GROUPS: a part of its own for each GROUP of commands, with their NAMES.
constexpr char kBashOfControl[] = R"(_fsdpctl() {
  local line=${COMP_LINE:0:COMP_POINT} words
  read -ra words <<<"$line"
  if [[ $line == *[[:blank:]] ]]; then words+=(''); fi
  COMPREPLY=()
  if (( ${#words[@]} == 2 )); then
    mapfile -t COMPREPLY < <(compgen -W 'FIRST --help --version --completion' -- "${words[1]}")
GROUPS  elif declare -F "_fsdpctl_${words[1]}_${words[2]}" >/dev/null; then
    "_fsdpctl_${words[1]}_${words[2]}"
  elif declare -F "_fsdpctl_${words[1]}" >/dev/null; then
    "_fsdpctl_${words[1]}"
  fi
}
complete -o default -F _fsdpctl fsdpctl
)";

constexpr char kBashOfGroup[] =
    R"(  elif (( ${#words[@]} == 3 )) && [[ ${words[1]} == GROUP ]]; then
    mapfile -t COMPREPLY < <(compgen -W 'NAMES' -- "${words[2]}")
)";

constexpr char kZshOfControl[] = R"(_fsdpctl() {
  if (( CURRENT == 2 )); then
    compadd -- FIRST --help --version --completion
GROUPS  elif (( CURRENT > 3 && $+functions[_fsdpctl_${words[2]}_${words[3]}] )); then
    local command=_fsdpctl_${words[2]}_${words[3]}
    shift 2 words
    (( CURRENT -= 2 ))
    $command
  elif (( CURRENT > 2 && $+functions[_fsdpctl_${words[2]}] )); then
    local command=_fsdpctl_${words[2]}
    shift words
    (( CURRENT -= 1 ))
    $command
  fi
}
)";

constexpr char kZshOfGroup[] = R"(  elif (( CURRENT == 3 )) && [[ $words[2] == GROUP ]]; then
    compadd -- NAMES
)";

constexpr char kFishOfControl[] = R"(function __fsdpctl_is_after
    set -l words (commandline -opc)
    test (count $words) = (math 1 + (count $argv)); and test "$words[2..-1]" = "$argv"
end
complete -c fsdpctl -n __fsdpctl_is_after -x -a 'FIRST'
complete -c fsdpctl -n __fsdpctl_is_after -l help -d 'Print the commands'
complete -c fsdpctl -n __fsdpctl_is_after -l version -d 'Print the version'
complete -c fsdpctl -n __fsdpctl_is_after -l completion -x -a 'bash zsh fish' -d 'Print the completions of a shell'
GROUPS)";

constexpr char kFishOfGroup[] =
    R"(complete -c fsdpctl -n '__fsdpctl_is_after GROUP' -x -a 'NAMES'
)";

/// The three texts of a shell.
struct ControlTexts {
  const char* dispatcher;
  const char* of_group;
  std::string (*function)(CliProgram program);
};

ControlTexts ControlTextsOf(Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return {kBashOfControl, kBashOfGroup, BashFunction};
    case Shell::kZsh:
      return {kZshOfControl, kZshOfGroup, ZshFunction};
    case Shell::kFish:
      return {kFishOfControl, kFishOfGroup, FishFunction};
  }
  return {};
}

}  // namespace

std::string CompletionScript(CliProgram program, Shell shell) {
  const std::string name = ProgramName(program);
  switch (shell) {
    case Shell::kBash:
      return absl::StrCat(Begin(name, shell), Bash(program));
    case Shell::kZsh:
      return absl::StrCat(Begin(name, shell),
                          program == CliProgram::kFsdprun ? OfLauncher(ZshFunction, kZshOfLauncher)
                                                          : ZshFunction(program),
                          ZshEnd(name, ProgramIdentifier(program)));
    case Shell::kFish:
      return absl::StrCat(Begin(name, shell), FishFunction(program),
                          program == CliProgram::kFsdprun ? FishFunction(CliProgram::kChaos) : "");
  }
  return "";
}

std::string ControlCompletionScript(Shell shell) {
  const ControlTexts texts = ControlTextsOf(shell);
  std::vector<std::string> first;
  std::map<std::string, std::vector<std::string>> names_of_group;
  std::string functions;
  for (const CliProgram program : kControlPrograms) {
    const std::vector<std::string> words = ProgramWords(program);
    if (first.empty() || first.back() != words[1]) {
      first.push_back(words[1]);
    }
    if (words.size() > 2) {
      names_of_group[words[1]].push_back(words[2]);
    }
    absl::StrAppend(&functions, texts.function(program));
  }
  std::string groups;
  for (const auto& [group, names] : names_of_group) {
    absl::StrAppend(&groups,
                    absl::StrReplaceAll(texts.of_group,
                                        {{"GROUP", group}, {"NAMES", absl::StrJoin(names, " ")}}));
  }
  return absl::StrCat(Begin("fsdpctl", shell), functions,
                      absl::StrReplaceAll(texts.dispatcher, {{"FIRST", absl::StrJoin(first, " ")},
                                                             {"GROUPS", groups}}),
                      shell == Shell::kZsh ? ZshEnd("fsdpctl", "fsdpctl") : "");
}

}  // namespace fsdprun
