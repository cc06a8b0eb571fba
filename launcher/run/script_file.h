#pragma once

#include <string>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// What the first bytes of a program say of who runs it, where Python cannot.
struct ScriptFile {
  /// Machine code. Python could read it only if an archive with Python code hung on it, and such a
  /// file runs that itself.
  bool is_elf = false;
  /// First line of a shell script, such as "#!/bin/bash", unless Python can read it, too.
  std::string shell_line;
};

/// `beginning`: the first bytes of the file, enough for two lines. Pure.
ScriptFile ReadBeginning(absl::string_view beginning);
/// Of the file at `path`; as of a script of Python if it cannot be read.
ScriptFile ReadScriptFile(const std::string& path);

}  // namespace fsdprun
