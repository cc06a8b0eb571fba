#pragma once

#include <vector>

#include "launcher/cli/option_table.h"

namespace fsdprun {

inline constexpr char kVersion[] = "0.1.0";

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
const char* SpellingRules();

/// The keys of --rdzv-conf.
const std::vector<TextEntry>& ConfTexts();
const std::vector<TextEntry>& SignalTexts(CliProgram program);
const std::vector<TextEntry>& ExitCodeTexts(CliProgram program);
const std::vector<TextEntry>& VariableTexts();

}  // namespace fsdprun
