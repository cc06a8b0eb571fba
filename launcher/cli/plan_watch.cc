#include "launcher/cli/plan_watch.h"

#include <cmath>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

constexpr char kAutoPrefix[] = "auto:";

absl::Status ReadHangTimeout(const RawValue& value, WatchPlan* watch) {
  watch->looks_for_hangs = value.text != "off";
  if (value.text == "auto" || value.text == "off") {
    return absl::OkStatus();
  }
  const bool is_auto = absl::StartsWith(value.text, kAutoPrefix);
  const std::string number = is_auto ? value.text.substr(sizeof(kAutoPrefix) - 1) : value.text;
  const absl::StatusOr<std::chrono::milliseconds> time =
      ToSeconds({value.source, number}, /*zero_allowed=*/false);
  if (!time.ok()) {
    return InvalidValue(value, "SECONDS above 0, auto, auto:SECONDS or off");
  }
  if (is_auto) {
    watch->warm_up = *time;
  } else {
    watch->hang_timeout = *time;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status PlanWatch(const RawOptions& options, LaunchPlan* plan) {
  if (const RawValue* value = options.Find("on-hang")) {
    ASSIGN_OR_RETURN(const std::string word, ToWord(*value, {"report", "restart", "abort"}));
    plan->watch.on_hang = word == "restart" ? OnHang::kRestart
                          : word == "abort" ? OnHang::kAbort
                                            : OnHang::kReport;
  }
  if (const RawValue* value = options.Find("hang-timeout")) {
    RETURN_IF_ERROR(ReadHangTimeout(*value, &plan->watch));
  }
  if (const RawValue* value = options.Find("straggler-ratio")) {
    double& ratio = plan->watch.straggler_ratio;
    if (!absl::SimpleAtod(value->text, &ratio) || !std::isfinite(ratio) || ratio < 0) {
      return InvalidValue(*value, "a share such as 0.1, or 0 for never");
    }
  }
  return absl::OkStatus();
}

}  // namespace fsdprun
