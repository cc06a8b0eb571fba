#pragma once

#include <string>

namespace fsdprun {

// Note [Temporary names]
// An output has the name <path>.tmp-<host>-<process>-<number> until it is whole. If its process is
// killed, nothing removes it: the next output of that path does. It must not take what another
// process is writing, on this machine or on one that shares the folder. So the name says which host
// it is of, as a number, and which process; and that process holds a lock on it, which ends with
// it, for one of another container may have the same host name and numbers of its own.

/// The name beside `path` for this process and that number.
std::string TemporaryName(const std::string& path, int number);

/// Locks the open temporary file or folder, until it is closed; does nothing where the file system
/// has no locks.
void HoldTemporary(int fd);

/// Removes what killed processes of this host have left of outputs of `path`. What cannot be
/// removed, and what may be in use, stays.
void RemoveLeftovers(const std::string& path);

}  // namespace fsdprun
