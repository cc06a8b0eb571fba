#include "launcher/chaos/plan/powers.h"

#include "absl/strings/str_cat.h"

namespace fsdprun::chaos {
namespace {

std::string WhyNotKill(FaultTarget target, const Powers& powers) {
  if (target != FaultTarget::kAgent && target != FaultTarget::kCoordinator) {
    return "";
  }
  if (powers.form == Form::kOneLauncher) {
    return absl::StrCat("kill ", NameOf(target),
                        " is the end of a job with one launcher: have a job of several nodes "
                        "started (--nnodes 2 or more), or attach to one with --job");
  }
  if (powers.form == Form::kAttached && !powers.names_targets) {
    return absl::StrCat("nobody here starts the ", NameOf(target),
                        " of a job again to which this is attached: name it in --targets if "
                        "something else does");
  }
  return "";
}

}  // namespace

std::string WhyNot(FaultKind kind, FaultTarget target, const Powers& powers) {
  switch (kind) {
    case FaultKind::kKill:
      return WhyNotKill(target, powers);
    case FaultKind::kStop:
      return "";
    case FaultKind::kPartition:
    case FaultKind::kDelay:
      return powers.form == Form::kNodes
                 ? ""
                 : absl::StrCat(NameOf(kind),
                                " needs agents that reach their coordinator through this program: "
                                "have it start a job of several nodes (fsdprun chaos -- fsdprun "
                                "--nnodes 2 ...)");
    case FaultKind::kFill:
      return powers.has_fill ? "" : "fill needs --fill DIR: the file system that is filled";
    case FaultKind::kCorrupt:
      return powers.has_corrupt ? "" : "corrupt needs --corrupt DIR: where the checkpoints are";
  }
  return "";
}

}  // namespace fsdprun::chaos
