#pragma once

#include <string>
#include <vector>

namespace fsdprun::keeper {

/// Removes the directories if the process behind `launcher_pidfd` has ended, or ends soon: nobody
/// else is left to do it. May hang with the file system; for when nothing else is to be done.
void RemoveLeavingsOfDead(int launcher_pidfd, const std::vector<std::string>& directories);

}  // namespace fsdprun::keeper
