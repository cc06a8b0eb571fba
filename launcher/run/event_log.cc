#include "launcher/run/event_log.h"

#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "launcher/ledger/ledger_json.h"
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
    place_ = folder;
    file_ = std::make_unique<EventFile>(loop_, folder + "/events.jsonl");
  }
}

void EventLog::OpenForCoordinator(const LaunchPlan& plan) {
  if (plan.log_dir.empty()) {
    return;
  }
  place_ = absl::StrCat(plan.log_dir, "/", plan.rdzv_id, "_coordinator_*");
  file_ = std::make_unique<EventFile>(
      loop_, plan.log_dir,
      [base = plan.log_dir,
       prefix = absl::StrCat(plan.rdzv_id, "_coordinator_")]() -> absl::StatusOr<std::string> {
        ASSIGN_OR_RETURN(const std::string folder, MakeFreshDir(base, prefix));
        return folder + "/events.jsonl";
      });
}

template <class News>
void EventLog::Append(const News& news) {
  if (file_ != nullptr) {
    file_->Append(FormatEvent(news, source_, absl::ToUnixMillis(absl::Now())));
  }
}

void EventLog::Record(const job::News& news, const TimeLedger& ledger) {
  Append(news);
  if (file_ != nullptr && std::holds_alternative<job::JobFinished>(news)) {
    file_->LeaveBeside("ledger.json", LedgerJson(ledger, source_.job, MonoNow()));
  }
}
void EventLog::Record(const node::News& news) { Append(news); }
void EventLog::Record(const watch::Finding& finding) { Append(finding); }

std::string EventLog::LeaveBeside(const std::string& name, const std::string& text) {
  if (file_ == nullptr) {
    return "";
  }
  file_->LeaveBeside(name, text);
  return absl::StrCat(place_, "/", name);
}

void EventLog::Finish(MonoTime deadline) {
  if (file_ != nullptr) {
    file_->Finish(deadline);
    file_.reset();
  }
}

}  // namespace fsdprun
