#pragma once

#include <cstddef>

#include "absl/strings/string_view.h"

namespace fsdprun {

/// Writes the whole text, in however many parts the kernel takes it; signals do not interrupt it.
/// For descriptors that block: files, pipes. Any thread, and a child between fork() and exec().
/// Returns 0 or an errno (ENOSPC if a write takes nothing and names no error), and in `written` how
/// much was, with an error too.
int WriteAll(int fd, absl::string_view text, size_t* written = nullptr);

}  // namespace fsdprun
