#include "launcher/cli/completion_functions.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace fsdprun {
namespace {

/// Whether what follows the first word that is no option is another program's.
bool EndsAtFirstWord(CliProgram program) {
  return program != CliProgram::kSlurmGrow && !TakesOptionsOnly(program);
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
constexpr char kBash[] = R"(_IDENTIFIER() {
  local line=${COMP_LINE:0:COMP_POINT} words current='' option='' word name
  read -ra words <<<"$line"
  if [[ $line != *[[:blank:]] ]]; then
    current=${words[-1]}
    unset 'words[-1]'
  fi
  COMPREPLY=()
  for word in "${words[@]:SKIPPED}"; do
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
      STOP
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
)";

}  // namespace

std::vector<std::string> ProgramWords(CliProgram program) {
  return absl::StrSplit(ProgramName(program), ' ');
}

std::string ProgramIdentifier(CliProgram program) {
  return absl::StrReplaceAll(ProgramName(program), {{"-", "_"}, {" ", "_"}});
}

std::string BashFunction(CliProgram program) {
  std::vector<std::string> options, values;
  std::string actions;
  std::string letters = "=";  // Never empty; no option has this one.
  for (const OptionSpec& option : OptionsOf(program)) {
    options.push_back(absl::StrCat("--", option.name));
    if (option.takes_value()) {
      values.emplace_back(option.name);
      if (option.letter != 0) {
        letters.push_back(option.letter);
      }
      const bool is_path =
          option.completion == Completion::kDirectory || option.completion == Completion::kFile;
      const std::string pattern =
          option.letter == 0 ? option.name
                             : absl::StrCat(option.name, " | -", std::string(1, option.letter));
      absl::StrAppend(
          &actions, "    ", pattern, ") ", is_path ? "compopt -o filenames 2>/dev/null; " : "",
          "mapfile -t COMPREPLY < <(compgen ", BashAction(option), " -- \"$current\") ;;\n");
    }
  }
  return absl::StrReplaceAll(kBash, {{"IDENTIFIER", ProgramIdentifier(program)},
                                     {"SKIPPED", absl::StrCat(ProgramWords(program).size())},
                                     {"STOP", EndsAtFirstWord(program) ? "return" : "continue"},
                                     {"VALUES", absl::StrJoin(values, " ")},
                                     {"LETTERS", letters},
                                     {"OPTIONS", absl::StrJoin(options, " ")},
                                     {"ACTIONS", actions}});
}

// --- zsh

namespace {

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

}  // namespace

std::string ZshFunction(CliProgram program) {
  const bool ends_early = EndsAtFirstWord(program);
  std::string script = absl::StrCat("_", ProgramIdentifier(program), "() {\n  _arguments -S ",
                                    ends_early ? "-A '-*' " : "", "\\\n");
  for (const OptionSpec& option : OptionsOf(program)) {
    const std::string help = ZshText(FirstSentence(option.help));
    const std::string value =
        option.takes_value() ? absl::StrCat(":", ZshText(option.metavar), ":", ZshAction(option))
                             : "";
    absl::StrAppend(&script, "    '--", option.name, option.takes_value() ? "=" : "", "[", help,
                    "]", value, "' \\\n");
    if (option.letter != 0) {
      absl::StrAppend(&script, "    '-", std::string(1, option.letter),
                      option.takes_value() ? "+" : "", "[", help, "]", value, "' \\\n");
    }
  }
  const char* words = ends_early                  ? "'1:program:_files' '*::arguments:_files'"
                      : TakesOptionsOnly(program) ? ""
                                                  : "'1:job:'";
  absl::StrAppend(&script, "    ", words, "\n}\n");
  return script;
}

// --- fish

namespace {

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

constexpr char kFish[] = R"(function __IDENTIFIER_before_program
    set -l words (commandline -opc)
    set -l is_value 0
CHECK    for word in $words[NEXT..-1]
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
            STOP
        end
    end
    return 0
end
)";

}  // namespace

std::string FishFunction(CliProgram program) {
  const std::vector<std::string> words = ProgramWords(program);
  std::vector<std::string> values;
  std::string lines;
  for (const OptionSpec& option : OptionsOf(program)) {
    absl::StrAppend(&lines, "complete -c ", words.front(), " -n __", ProgramIdentifier(program),
                    "_before_program -l ", option.name);
    if (option.letter != 0) {
      absl::StrAppend(&lines, " -s ", std::string(1, option.letter));
    }
    if (option.takes_value()) {
      values.push_back(absl::StrCat("--", option.name));
      if (option.letter != 0) {
        values.push_back(absl::StrCat("-", std::string(1, option.letter)));
      }
      absl::StrAppend(&lines, FishAction(option));
    }
    absl::StrAppend(&lines, " -d '",
                    absl::StrReplaceAll(FirstSentence(option.help), {{"'", "\\'"}}), "'\n");
  }
  const std::string command = absl::StrJoin(words.begin() + 1, words.end(), " ");
  const std::string check = command.empty() ? ""
                                            : absl::StrCat("    test \"$words[2..", words.size(),
                                                           "]\" = '", command, "'; or return 1\n");
  return absl::StrCat(
      absl::StrReplaceAll(kFish, {{"IDENTIFIER", ProgramIdentifier(program)},
                                  {"CHECK", check},
                                  {"NEXT", absl::StrCat(words.size() + 1)},
                                  {"STOP", EndsAtFirstWord(program) ? "return 1" : "continue"},
                                  {"VALUES", absl::StrJoin(values, " ")}}),
      lines);
}

}  // namespace fsdprun
