#pragma once

#include <vector>

#include "launcher/cli/program_texts.h"

namespace fsdprun {

// Of the commands fsdpctl ckpt, for TextsOf() and ExitCodeTexts().
const ProgramTexts& CkptTexts(CliProgram program);
const std::vector<TextEntry>& CkptExitCodes(CliProgram program);

}  // namespace fsdprun
