#pragma once

#include <functional>
#include <string>
#include <vector>

#include "worker/checkpoint/checkpoint.h"

namespace fsdprun::checkpoint {

/// Of an error: it says nothing of files, such as one of a device. It may pass.
constexpr int kNotOfFiles = -3;

/// Every rank's text on every rank, by rank. Collective over Group::collectives.
std::vector<std::string> GatherTexts(const Group& group, const std::string& mine);

/// Rank 0's text on every rank. Collective.
std::string BroadcastText(const Group& group, const std::string& mine);

// Note [Agreed failure]
// A rank that throws between two collectives leaves the others blocked. So every step that can
// fail on one rank alone runs inside one of the Attempt functions: it is tried, the outcomes are
// exchanged, and then either all ranks continue or all throw the same CheckpointError.

/// Runs `attempt` on every rank; returns all ranks' results, by rank. Collective over
/// Group::collectives.
std::vector<std::string> AttemptOnAll(const Group& group,
                                      const std::function<std::string()>& attempt);

/// Runs `attempt` on every rank, then `conclude` on rank 0, which gets all ranks' results, by rank;
/// returns what that returns, on every rank. Collective.
std::string AttemptAndConclude(
    const Group& group, const std::function<std::string()>& attempt,
    const std::function<std::string(const std::vector<std::string>&)>& conclude);

/// Runs `attempt` on rank 0 alone; returns its result on every rank. Collective.
std::string AttemptOnRank0(const Group& group, const std::function<std::string()>& attempt);

/// To Group::warn, or to stderr. Rank 0 only.
void EmitWarning(const Group& group, const std::string& message);

}  // namespace fsdprun::checkpoint
