#include "launcher/cli/completions.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"

namespace fsdprun {
namespace {

std::vector<const OptionSpec*> OfferedBy(CliProgram program) {
  std::vector<const OptionSpec*> offered;
  for (const OptionSpec& option : OptionTable()) {
    if (Offers(program, option)) {
      offered.push_back(&option);
    }
  }
  return offered;
}

/// As part of a function's name.
std::string Identifier(CliProgram program) {
  return absl::StrReplaceAll(ProgramName(program), {{"-", "_"}});
}

/// Without the mark at its end.
std::string FirstSentence(absl::string_view text) {
  size_t end = 0;
  do {
    end = text.find_first_of(".;", end + 1);
  } while (end != absl::string_view::npos && end + 1 < text.size() && text[end + 1] != ' ');
  return std::string(text.substr(0, end));
}

// --- bash

/// What bash offers as the option's value; empty: files, as for what is not completed.
std::string BashAction(const OptionSpec& option) {
  switch (option.completion) {
    case Completion::kWords:
      return absl::StrCat("-W '", option.words, "'");
    case Completion::kDirectory:
      return "-d";
    case Completion::kFile:
      return "-f";
    case Completion::kHost:
      return "-A hostname";
    case Completion::kNothing:
      break;
  }
  return "-W ''";
}

// COMP_WORDS is cut at "=" and ":"; the line, cut at blanks, has the words as the program sees them
// (but for quotes). bash replaces only what follows the last of these marks.
constexpr char kBash[] = R"(# Completions of PROGRAM for bash: source <(PROGRAM --completion bash)
_IDENTIFIER() {
  local line=${COMP_LINE:0:COMP_POINT} words current='' option='' word name
  read -ra words <<<"$line"
  if [[ $line != *[[:blank:]] ]]; then
    current=${words[-1]}
    unset 'words[-1]'
  fi
  COMPREPLY=()
  for word in "${words[@]:1}"; do
    if [[ -n $option ]]; then
      option=''
    elif [[ $word == --*=* ]]; then
      continue
    elif [[ $word == --?* ]]; then
      word=${word#--}
      for name in VALUES; do
        if [[ $name == "${word//_/-}"* ]]; then
          option=$name
          [[ $name != "${word//_/-}" ]] || break
        fi
      done
    elif [[ $word == -[LETTERS] ]]; then
      option=$word
    elif [[ $word != -* || $word == -- ]]; then
      return
    fi
  done
  if [[ -z $option && $current == --*=* ]]; then
    option=${current%%=*}
    option=${option#--}
    option=${option//_/-}
    current=${current#*=}
  fi
  case $option in
ACTIONS    '')
      if [[ $current == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W 'OPTIONS' -- "$current")
      fi
      ;;
  esac
}
complete -o default -F _IDENTIFIER PROGRAM
)";

std::string Bash(CliProgram program) {
  std::vector<std::string> options, values;
  std::string actions;
  std::string letters = "=";  // Never empty; no option has this one.
  for (const OptionSpec* option : OfferedBy(program)) {
    options.push_back(absl::StrCat("--", option->name));
    if (option->takes_value()) {
      values.emplace_back(option->name);
      if (option->letter != 0) {
        letters.push_back(option->letter);
      }
      const bool is_path =
          option->completion == Completion::kDirectory || option->completion == Completion::kFile;
      const std::string pattern =
          option->letter == 0 ? option->name
                              : absl::StrCat(option->name, " | -", std::string(1, option->letter));
      absl::StrAppend(
          &actions, "    ", pattern, ") ", is_path ? "compopt -o filenames 2>/dev/null; " : "",
          "mapfile -t COMPREPLY < <(compgen ", BashAction(*option), " -- \"$current\") ;;\n");
    }
  }
  return absl::StrReplaceAll(kBash, {{"PROGRAM", ProgramName(program)},
                                     {"IDENTIFIER", Identifier(program)},
                                     {"VALUES", absl::StrJoin(values, " ")},
                                     {"LETTERS", letters},
                                     {"OPTIONS", absl::StrJoin(options, " ")},
                                     {"ACTIONS", actions}});
}

// --- zsh

std::string ZshAction(const OptionSpec& option) {
  switch (option.completion) {
    case Completion::kWords:
      return absl::StrCat("(", option.words, ")");
    case Completion::kDirectory:
      return "_files -/";
    case Completion::kFile:
      return "_files";
    case Completion::kHost:
      return "_hosts";
    case Completion::kNothing:
      break;
  }
  return "";
}

/// Inside of single quotes and of a specification of _arguments, where brackets and colons count.
std::string ZshText(absl::string_view text) {
  return absl::StrReplaceAll(
      text, {{"'", "'\\''"}, {"[", "\\["}, {"]", "\\]"}, {":", "\\:"}, {"\\", "\\\\"}});
}

// As a file of fpath it is the function itself, the first time it is called.
constexpr char kZshEnd[] = R"(if [[ $funcstack[1] == _IDENTIFIER ]]; then
  _IDENTIFIER "$@"
elif (( $+functions[compdef] )); then
  compdef _IDENTIFIER PROGRAM
fi
)";

std::string Zsh(CliProgram program) {
  std::string script =
      absl::StrCat("#compdef ", ProgramName(program), "\n# Completions of ", ProgramName(program),
                   " for zsh: source <(", ProgramName(program), " --completion zsh)\n_",
                   Identifier(program), "() {\n  _arguments -S -A '-*' \\\n");
  for (const OptionSpec* option : OfferedBy(program)) {
    const std::string help = ZshText(FirstSentence(option->help));
    const std::string value =
        option->takes_value() ? absl::StrCat(":", ZshText(option->metavar), ":", ZshAction(*option))
                              : "";
    absl::StrAppend(&script, "    '--", option->name, option->takes_value() ? "=" : "", "[", help,
                    "]", value, "' \\\n");
    if (option->letter != 0) {
      absl::StrAppend(&script, "    '-", std::string(1, option->letter),
                      option->takes_value() ? "+" : "", "[", help, "]", value, "' \\\n");
    }
  }
  absl::StrAppend(&script, "    '1:program:_files' '*::arguments:_files'\n}\n",
                  absl::StrReplaceAll(kZshEnd, {{"PROGRAM", ProgramName(program)},
                                                {"IDENTIFIER", Identifier(program)}}));
  return script;
}

// --- fish

std::string FishAction(const OptionSpec& option) {
  switch (option.completion) {
    case Completion::kWords:
      return absl::StrCat(" -x -a '", option.words, "'");
    case Completion::kDirectory:
      return " -x -a '(__fish_complete_directories)'";
    case Completion::kFile:
      return " -r -F";
    case Completion::kHost:
      return " -x -a '(__fish_print_hostnames)'";
    case Completion::kNothing:
      break;
  }
  return " -x";
}

constexpr char kFish[] = R"(# Completions of PROGRAM for fish: PROGRAM --completion fish | source
function __IDENTIFIER_before_program
    set -l is_value 0
    for word in (commandline -opc)[2..-1]
        if test $is_value = 1
            set is_value 0
        else if string match -q -- '--*=*' $word
            continue
        else if string match -q -- '-*' $word
            for option in VALUES
                if string match -q -- (string replace -a _ - -- $word)'*' $option
                    set is_value 1
                end
            end
        else
            return 1
        end
    end
    return 0
end
)";

std::string Fish(CliProgram program) {
  std::vector<std::string> values;
  std::string lines;
  for (const OptionSpec* option : OfferedBy(program)) {
    absl::StrAppend(&lines, "complete -c ", ProgramName(program), " -n __", Identifier(program),
                    "_before_program -l ", option->name);
    if (option->letter != 0) {
      absl::StrAppend(&lines, " -s ", std::string(1, option->letter));
    }
    if (option->takes_value()) {
      values.push_back(absl::StrCat("--", option->name));
      if (option->letter != 0) {
        values.push_back(absl::StrCat("-", std::string(1, option->letter)));
      }
      absl::StrAppend(&lines, FishAction(*option));
    }
    absl::StrAppend(&lines, " -d '",
                    absl::StrReplaceAll(FirstSentence(option->help), {{"'", "\\'"}}), "'\n");
  }
  return absl::StrCat(absl::StrReplaceAll(kFish, {{"PROGRAM", ProgramName(program)},
                                                  {"IDENTIFIER", Identifier(program)},
                                                  {"VALUES", absl::StrJoin(values, " ")}}),
                      lines);
}

}  // namespace

std::string CompletionScript(CliProgram program, Shell shell) {
  switch (shell) {
    case Shell::kBash:
      return Bash(program);
    case Shell::kZsh:
      return Zsh(program);
    case Shell::kFish:
      return Fish(program);
  }
  return "";
}

}  // namespace fsdprun
