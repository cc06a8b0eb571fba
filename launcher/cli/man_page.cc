#include "launcher/cli/man_page.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/string_view.h"
#include "launcher/cli/program_texts.h"
#include "proto/release.h"

namespace fsdprun {
namespace {

/// A line that troff shows as it is: a dash stays a dash that can be copied, and no text is taken
/// for a request.
std::string Escaped(absl::string_view text) {
  const std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}});
  const bool is_request = absl::StartsWith(escaped, ".") || absl::StartsWith(escaped, "'");
  return absl::StrCat(is_request ? "\\&" : "", escaped);
}

void AppendSection(const char* title, std::string* out) {
  absl::StrAppend(out, ".SH ", title, "\n");
}

void AppendTerm(absl::string_view term, absl::string_view text, std::string* out) {
  absl::StrAppend(out, ".TP\n", term, "\n", Escaped(text), "\n");
}

void AppendTermOf(const OptionSpec& option, std::string* out) {
  std::string term;
  if (option.letter != 0) {
    absl::StrAppend(&term, "\\fB\\-", std::string(1, option.letter), "\\fR, ");
  }
  absl::StrAppend(&term, "\\fB\\-\\-", Escaped(option.name), "\\fR");
  if (option.takes_value()) {
    absl::StrAppend(&term, " \\fI", Escaped(option.metavar), "\\fR");
  }
  AppendTerm(term, option.help, out);
  if (*option.default_text != '\0') {
    absl::StrAppend(out, "Default: ", Escaped(option.default_text), ".\n");
  }
  if (const std::string variable = ShownVariable(option); !variable.empty()) {
    absl::StrAppend(out, "Environment: ", variable, ".\n");
  }
}

void AppendTermsOf(const char* title, const std::vector<TextEntry>& entries, std::string* out) {
  if (entries.empty()) {
    return;
  }
  AppendSection(title, out);
  for (const TextEntry& entry : entries) {
    AppendTerm(absl::StrCat("\\fB", entry.term, "\\fR"), entry.text, out);
  }
}

}  // namespace

std::string ManPage(CliProgram program) {
  // A command has a page of its own, as `git commit` has.
  const std::string name = absl::StrReplaceAll(ProgramName(program), {{" ", "-"}});
  const ProgramTexts& texts = TextsOf(program);
  std::string page = absl::StrCat(".TH ", absl::AsciiStrToUpper(Escaped(name)), " 1 \"\" \"",
                                  Escaped(name), " ", kRelease, "\" \"User Commands\"\n");
  AppendSection("NAME", &page);
  absl::StrAppend(&page, Escaped(name), " \\- ", Escaped(texts.summary), "\n");
  AppendSection("SYNOPSIS", &page);
  absl::StrAppend(&page, "\\fB", Escaped(ProgramName(program)), "\\fR ", Escaped(texts.synopsis),
                  "\n");
  AppendSection("DESCRIPTION", &page);
  absl::StrAppend(&page, Escaped(texts.description), "\n.PP\n", Escaped(SpellingRules(program)),
                  "\n");
  AppendSection("OPTIONS", &page);
  for (const auto& [group, title] : OptionGroupTitles()) {
    std::string options;
    for (const OptionSpec& option : OptionsOf(program)) {
      if (option.group == group) {
        AppendTermOf(option, &options);
      }
    }
    if (!options.empty()) {
      absl::StrAppend(&page, ".SS ", title, "\n", options);
    }
  }
  AppendTermsOf("KEYS OF \\-\\-RDZV\\-CONF", ConfTexts(program), &page);
  AppendTermsOf("SIGNALS", SignalTexts(program), &page);
  AppendTermsOf("EXIT STATUS", ExitCodeTexts(program), &page);
  AppendTermsOf("ENVIRONMENT", VariableTexts(program), &page);
  AppendSection("EXAMPLES", &page);
  for (const char* example : texts.examples) {
    absl::StrAppend(&page, ".EX\n", Escaped(example), "\n.EE\n.PP\n");
  }
  return page;
}

}  // namespace fsdprun
