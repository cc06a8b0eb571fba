#pragma once

namespace fsdprun::worker {

/// Every data file stays open, and so does every file of a checkpoint that is read: there may be
/// more of them than the soft limit allows. Raises it to the hard one; returns whether that is more
/// than before.
bool RaiseOpenFileLimit();

}  // namespace fsdprun::worker
