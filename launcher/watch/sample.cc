#include "launcher/watch/sample.h"

#include <utility>

namespace fsdprun::watch {
namespace {

struct Names {
  Activity activity;
  std::string_view wire;
  std::string_view text;
};

constexpr Names kNames[] = {
    {Activity::kOther, "other", "other work"},
    {Activity::kStarting, "starting", "starting"},
    {Activity::kWaitingForData, "waiting_for_data", "waiting for data"},
    {Activity::kForward, "forward", "the forward pass"},
    {Activity::kBackward, "backward", "the backward pass"},
    {Activity::kOptimizer, "optimizer", "the optimizer"},
    {Activity::kEvaluating, "evaluating", "evaluating"},
    {Activity::kSaving, "saving", "saving a checkpoint"},
    {Activity::kLoading, "loading", "loading a checkpoint"},
    {Activity::kCollective, "collective", "a collective"},
};

}  // namespace

Activity ActivityNamed(std::string_view name) {
  for (const Names& names : kNames) {
    if (names.wire == name) {
      return names.activity;
    }
  }
  return Activity::kOther;
}

std::string_view TextOf(Activity activity) {
  for (const Names& names : kNames) {
    if (names.activity == activity) {
      return names.text;
    }
  }
  return "?";
}

}  // namespace fsdprun::watch
