#pragma once

#include <string>

namespace fsdprun::keeper {

/// Removes the directory if the process behind `launcher_pidfd` has ended, or ends soon: nobody
/// else is left to do it. May hang with the file system; for when nothing else is to be done.
void RemoveSpoolOfDead(int launcher_pidfd, const std::string& directory);

}  // namespace fsdprun::keeper
