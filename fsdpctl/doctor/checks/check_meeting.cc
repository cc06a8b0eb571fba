#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "fsdpctl/doctor/checks/pair_checks.h"

namespace fsdprun::doctor {
namespace {

constexpr char kSameToken[] =
    "the same FSDPRUN_TOKEN (or --token-file) on all nodes; without one the token is "
    "~/.config/fsdprun/secret, which is the same where nodes share a home directory";

/// What is said of a node that did not get to the other.
Advice AdviceOf(JoinFailure failure, const std::string& endpoint) {
  switch (failure) {
    case JoinFailure::kUnknownHost:
      return {"", "a job that is started with this name does not find its coordinator",
              "give a numeric address, or mend name resolution (`getent hosts` and the name)"};
    case JoinFailure::kRefused:
      return {
          "", "its machine answers, but nothing listens at that port, or a firewall refuses it",
          absl::StrCat("start the same command there, or `fsdpctl doctor --listen`, and look at "
                       "its firewall for port ",
                       endpoint.substr(endpoint.rfind(':') + 1))};
    case JoinFailure::kSilent:
      return {"", "a job whose rendezvous is there would wait until its join timeout",
              "see whether the machine is up (`ping`), and open the port in firewalls and security "
              "groups"};
    case JoinFailure::kOtherProgram:
      return {"", "another program has the port: a job could not be hosted there",
              "another port, or end what has it (`ss -ltnp` there says what it is)"};
    case JoinFailure::kOtherVersion:
      return {"", "nodes of a job need the same release", "install the same release on all nodes"};
    case JoinFailure::kOtherToken:
      return {"", "the nodes of a job prove the same token to each other", kSameToken};
    case JoinFailure::kInterrupted:
      return {"", "the way between the nodes was not tested", "run it again"};
    case JoinFailure::kBroken:
      break;
  }
  return {"", "what breaks a test breaks a job", "run it again, and look at both ends"};
}

}  // namespace

std::vector<Finding> CheckMeeting(const MeetingFacts& facts) {
  Findings findings(CheckGroup::kPair);
  const int missing = std::max(facts.expected - facts.came - 1, 0);
  if (missing > 0) {
    findings.Problem(
        "nodes",
        {absl::StrCat(missing, " of ", facts.expected, " nodes did not come",
                      facts.was_interrupted
                          ? " until the test was interrupted"
                          : absl::StrFormat(": nobody new for %.0f s", facts.waited_s)),
         "a job of so many nodes would wait for them until its join timeout",
         "what the missing nodes print says why; fewer nodes: --nnodes; more time: --timeout"});
  } else {
    findings.Ok("nodes",
                absl::StrCat(facts.came, facts.came == 1 ? " other node was" : " other nodes were",
                             " tested"));
  }
  if (!facts.refused.empty()) {
    findings.Problem("token",
                     {absl::StrCat("nodes with another token were refused: ",
                                   absl::StrJoin(facts.refused, ", ")),
                      "the nodes of a job prove the same token to each other", kSameToken});
  }
  if (facts.strangers > 0) {
    findings.Note("strangers",
                  {absl::StrCat(facts.strangers, " connections said nothing that a node says"),
                   "they were closed: port scanners, or health checks", ""});
  }
  return findings.Take();
}

std::vector<Finding> CheckJoining(const JoinFacts& facts) {
  Findings findings(CheckGroup::kPair);
  Advice advice = AdviceOf(facts.failure, facts.endpoint);
  advice.found = facts.text;
  findings.Problem("meeting", advice);
  return findings.Take();
}

}  // namespace fsdprun::doctor
