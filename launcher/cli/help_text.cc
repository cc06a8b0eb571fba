#include "launcher/cli/help_text.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/option_table.h"
#include "launcher/cli/program_texts.h"

namespace fsdprun {
namespace {

constexpr size_t kWidth = 96;
constexpr size_t kIndent = 8;

void AppendWrapped(absl::string_view text, size_t indent, std::string* out) {
  std::string line(indent, ' ');
  while (!text.empty()) {
    const size_t space = text.find(' ');
    const absl::string_view word = text.substr(0, space);
    text = space == absl::string_view::npos ? absl::string_view() : text.substr(space + 1);
    if (line.size() > indent && line.size() + 1 + word.size() > kWidth) {
      absl::StrAppend(out, line, "\n");
      line.assign(indent, ' ');
    }
    absl::StrAppend(&line, line.size() > indent ? " " : "", word);
  }
  absl::StrAppend(out, line, "\n");
}

void AppendOption(const OptionSpec& option, std::string* out) {
  absl::StrAppend(out, "  ");
  if (option.letter != 0) {
    absl::StrAppend(out, "-", std::string(1, option.letter), ", ");
  }
  absl::StrAppend(out, "--", option.name);
  if (const std::string other = absl::StrReplaceAll(option.name, {{"-", "_"}});
      other != option.name) {
    absl::StrAppend(out, ", --", other);
  }
  if (option.takes_value()) {
    absl::StrAppend(out, " ", option.metavar);
  }
  absl::StrAppend(out, "\n");
  AppendWrapped(option.help, kIndent, out);
  std::string values;
  if (*option.default_text != '\0') {
    absl::StrAppend(&values, "Default: ", option.default_text, ".");
  }
  if (const std::string variable = ShownVariable(option); !variable.empty()) {
    absl::StrAppend(&values, values.empty() ? "" : " ", "Environment: ", variable, ".");
  }
  if (!values.empty()) {
    AppendWrapped(values, kIndent, out);
  }
}

void AppendEntries(const char* title, const std::vector<TextEntry>& entries, std::string* out) {
  if (entries.empty()) {
    return;
  }
  absl::StrAppend(out, "\n", title, ":\n");
  for (const TextEntry& entry : entries) {
    absl::StrAppend(out, "  ", entry.term, "\n");
    AppendWrapped(entry.text, kIndent, out);
  }
}

}  // namespace

std::string HelpText(CliProgram program) {
  const ProgramTexts& texts = TextsOf(program);
  std::string text = absl::StrCat("usage: ", ProgramName(program), " ", texts.synopsis, "\n\n");
  AppendWrapped(texts.description, 0, &text);
  absl::StrAppend(&text, "\n");
  for (const char* example : texts.examples) {
    absl::StrAppend(&text, "  ", example, "\n");
  }
  absl::StrAppend(&text, "\n");
  AppendWrapped(SpellingRules(program), 0, &text);
  for (const auto& [group, title] : OptionGroupTitles()) {
    std::string options;
    for (const OptionSpec& option : OptionsOf(program)) {
      if (option.group == group) {
        AppendOption(option, &options);
      }
    }
    if (!options.empty()) {
      absl::StrAppend(&text, "\n", title, ":\n", options);
    }
  }
  AppendEntries("Keys of --rdzv-conf", ConfTexts(program), &text);
  AppendEntries("Signals", SignalTexts(program), &text);
  AppendEntries("Exit codes", ExitCodeTexts(program), &text);
  AppendEntries("Environment", VariableTexts(program), &text);
  return text;
}

}  // namespace fsdprun
