#include "fsdpctl/slurm/batch_file.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "fsdpctl/slurm/shell_quote.h"
#include "launcher/cli/program_texts.h"
#include "proto/release.h"

namespace fsdprun {

std::string BatchText(const BatchFile& file) {
  std::string text = "#!/bin/bash\n";
  for (const Directive& directive : file.directives) {
    absl::StrAppend(&text, "#SBATCH --", directive.name, directive.value.empty() ? "" : "=",
                    directive.value.empty() ? "" : DirectiveQuoted(directive.value), "\n");
  }
  absl::StrAppend(&text, "# Written by fsdpctl ", kRelease, ".\n");
  if (!file.setup.empty()) {
    absl::StrAppend(&text, file.setup, "\n");
  }
  absl::StrAppend(&text, "exec ",
                  absl::StrJoin(file.command, " ",
                                [](std::string* out, const std::string& word) {
                                  absl::StrAppend(out, ShellQuoted(word));
                                }),
                  "\n");
  return text;
}

}  // namespace fsdprun
