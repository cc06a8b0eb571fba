#include "launcher/run/event_log.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"
#include "launcher/run/machine.h"

namespace fsdprun {
namespace {

/// How long a file system may delay an agent's next incarnation for the sake of the last one's
/// events.
constexpr Duration kLongestChange = std::chrono::milliseconds(200);

}  // namespace

EventLog::EventLog(EventLoop& loop, EventSource source) : loop_(loop), source_(std::move(source)) {}

void EventLog::Open(const std::string& folder) {
  Finish(MonoNow() + kLongestChange);
  if (!folder.empty()) {
    file_ = std::make_unique<EventFile>(loop_, folder + "/events.jsonl");
  }
}

void EventLog::OpenForCoordinator(const LaunchPlan& plan) {
  if (plan.log_dir.empty()) {
    return;
  }
  const absl::StatusOr<std::string> folder =
      MakeFreshDir(plan.log_dir, absl::StrCat(plan.rdzv_id, "_coordinator_"));
  if (!folder.ok()) {
    Log(LogLevel::kWarning,
        absl::StrCat(folder.status().message(), "; the coordinator's events are not kept"));
  }
  Open(folder.value_or(""));
}

template <class News>
void EventLog::Append(const News& news) {
  if (file_ != nullptr) {
    file_->Append(FormatEvent(news, source_, absl::ToUnixMillis(absl::Now())));
  }
}

void EventLog::Record(const job::News& news) { Append(news); }
void EventLog::Record(const node::News& news) { Append(news); }

void EventLog::Finish(MonoTime deadline) {
  if (file_ != nullptr) {
    file_->Finish(deadline);
    file_.reset();
  }
}

}  // namespace fsdprun
