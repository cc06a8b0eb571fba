#pragma once

// The checks of the way between two nodes. Pure: facts to findings.

#include <vector>

#include "fsdpctl/doctor/checks/finding.h"
#include "fsdpctl/doctor/checks/pair_facts.h"

namespace fsdprun::doctor {

std::vector<Finding> CheckPair(const PairFacts& facts);
std::vector<Finding> CheckMeeting(const MeetingFacts& facts);
std::vector<Finding> CheckJoining(const JoinFacts& facts);

}  // namespace fsdprun::doctor
