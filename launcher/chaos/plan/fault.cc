#include "launcher/chaos/plan/fault.h"

#include "absl/strings/str_cat.h"
#include "launcher/chaos/plan/length.h"

namespace fsdprun::chaos {

const char* NameOf(FaultKind kind) {
  switch (kind) {
    case FaultKind::kKill:
      return "kill";
    case FaultKind::kStop:
      return "stop";
    case FaultKind::kPartition:
      return "partition";
    case FaultKind::kDelay:
      return "delay";
    case FaultKind::kFill:
      return "fill";
    case FaultKind::kCorrupt:
      return "corrupt";
  }
  return "";
}

const char* NameOf(FaultTarget target) {
  switch (target) {
    case FaultTarget::kNone:
      return "";
    case FaultTarget::kWorker:
      return "worker";
    case FaultTarget::kKeeper:
      return "keeper";
    case FaultTarget::kAgent:
      return "agent";
    case FaultTarget::kCoordinator:
      return "coordinator";
  }
  return "";
}

std::optional<FaultKind> FaultKindOf(absl::string_view name) {
  for (const FaultKind kind : kFaultKinds) {
    if (name == NameOf(kind)) {
      return kind;
    }
  }
  return std::nullopt;
}

std::optional<FaultTarget> FaultTargetOf(absl::string_view name) {
  for (const FaultTarget target : kFaultTargets) {
    if (name == NameOf(target)) {
      return target;
    }
  }
  return std::nullopt;
}

bool Suits(FaultKind kind, FaultTarget target) {
  switch (kind) {
    case FaultKind::kKill:
      return target != FaultTarget::kNone;
    case FaultKind::kStop:
      // A keeper that is stopped only hears late of what its workers do.
      return target != FaultTarget::kNone && target != FaultTarget::kKeeper;
    case FaultKind::kPartition:
    case FaultKind::kDelay:
      return target == FaultTarget::kAgent;
    case FaultKind::kFill:
    case FaultKind::kCorrupt:
      return target == FaultTarget::kNone;
  }
  return false;
}

bool Lasts(FaultKind kind) { return kind != FaultKind::kKill && kind != FaultKind::kCorrupt; }

std::string TextOf(const PlannedFault& fault) {
  std::string text = NameOf(fault.kind);
  if (fault.target != FaultTarget::kNone) {
    absl::StrAppend(&text, " ", NameOf(fault.target));
  }
  if (fault.number.has_value()) {
    absl::StrAppend(&text, " ", *fault.number);
  }
  if (fault.kind == FaultKind::kDelay) {
    absl::StrAppend(&text, " by ", LengthText(fault.latency));
  }
  if (Lasts(fault.kind)) {
    absl::StrAppend(&text, " for ", LengthText(fault.length));
  }
  return text;
}

std::string TextOf(const FaultPlan& plan) {
  std::string text;
  for (size_t i = 0; i < plan.faults.size(); ++i) {
    const PlannedFault& fault = plan.faults[i];
    absl::StrAppend(&text, i + 1, ". ", plan.has_fixed_times ? "at " : "after ",
                    LengthText(fault.at), ": ", TextOf(fault), "\n");
  }
  return text;
}

}  // namespace fsdprun::chaos
