#pragma once

#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

/// A term and what it means.
struct TextEntry {
  const char* term;
  const char* text;
};

/// What is said of a program besides its options: the help text and the man page show the same.
struct ProgramTexts {
  const char* summary;   ///< A line.
  const char* synopsis;  ///< What follows the program's name.
  const char* description;
  std::vector<const char*> examples;
};

const ProgramTexts& TextsOf(CliProgram program);

/// How options are written.
const char* SpellingRules(CliProgram program);

/// The keys of --rdzv-conf. Those of a command that only passes the option on are the launcher's,
/// and not said again; so it is with the others.
const std::vector<TextEntry>& ConfTexts(CliProgram program);
const std::vector<TextEntry>& SignalTexts(CliProgram program);
const std::vector<TextEntry>& ExitCodeTexts(CliProgram program);
const std::vector<TextEntry>& VariableTexts(CliProgram program);

}  // namespace fsdprun
