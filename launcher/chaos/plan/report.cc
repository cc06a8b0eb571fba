#include "launcher/chaos/plan/report.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "launcher/chaos/plan/length.h"

namespace fsdprun::chaos {
namespace {

using json = nlohmann::ordered_json;
using State = FaultRecord::State;

constexpr int kReportVersion = 1;

const char* NameOf(State state) {
  switch (state) {
    case State::kPlanned:
      return "not begun";
    case State::kUnderWay:
    case State::kOver:
      return "open";
    case State::kAnswered:
      return "answered";
    case State::kUnanswered:
      return "not answered";
    case State::kSkipped:
      return "left out";
  }
  return "";
}

size_t CountOf(const std::vector<FaultRecord>& records, State state) {
  return static_cast<size_t>(std::count_if(records.begin(), records.end(),
                                           [state](const auto& r) { return r.state == state; }));
}

size_t CountDone(const std::vector<FaultRecord>& records) {
  return static_cast<size_t>(
      std::count_if(records.begin(), records.end(), [](const auto& r) { return r.IsDone(); }));
}

std::string Faults(size_t count) { return absl::StrCat(count, count == 1 ? " fault" : " faults"); }

/// The first fault that the job has not come through; nullptr without one.
const FaultRecord* FirstLost(const std::vector<FaultRecord>& records) {
  const auto lost = std::find_if(records.begin(), records.end(), [](const FaultRecord& record) {
    return record.state == State::kUnanswered;
  });
  return lost == records.end() ? nullptr : &*lost;
}

std::string Advice(const Outcome& outcome) {
  std::string advice;
  const JobView& view = outcome.view;
  if (view.max_restarts <= view.restarts_used) {
    absl::StrAppend(&advice, "all ", view.max_restarts,
                    " restarts are used up: start the job with a larger --max-restarts. ");
  }
  if (!view.last_failure.empty()) {
    absl::StrAppend(&advice, "the latest failure: ", view.last_failure, ". ");
  }
  absl::StrAppend(&advice,
                  "the events are in events.jsonl below the job's --log-dir, and while it runs in "
                  "`fsdpctl events --job ",
                  outcome.run_id, "`; see docs/CHAOS.md");
  return advice;
}

Verdict Bad(std::string text, std::string advice) {
  return {.is_good = false, .text = std::move(text), .advice = std::move(advice)};
}

Verdict JudgeLost(const FaultRecord& lost, size_t number, const Outcome& outcome) {
  std::string why = outcome.job_exit_code.has_value()
                        ? absl::StrCat("the job has ended with ", *outcome.job_exit_code)
                        : absl::StrCat("the job is ",
                                       outcome.view.answers ? outcome.view.phase : "not answering");
  if (!outcome.view.reason.empty()) {
    absl::StrAppend(&why, " (", outcome.view.reason, ")");
  }
  return Bad(absl::StrCat("not survived: fault ", number, ", ", NameOf(lost.planned.kind), " ",
                          lost.what, ": ", why),
             Advice(outcome));
}

std::string Answer(const FaultRecord& record) {
  const std::string after = LengthText(record.answered_at - record.begun_at);
  if (record.generation_after == record.generation_before) {
    return absl::StrCat("the job went on, seen after ", after);
  }
  return absl::StrCat("all workers ran again after ", after, ", generation ",
                      record.generation_after,
                      record.restarts_after > record.restarts_before
                          ? absl::StrCat(", restart ", record.restarts_after)
                          : ", no restart charged");
}

/// Kind and target, how many there were, and how long the answers took.
std::string Summary(const std::vector<FaultRecord>& records) {
  std::map<std::string, std::vector<Duration>> answers;
  for (const FaultRecord& record : records) {
    if (record.state == State::kAnswered) {
      const PlannedFault kind{.kind = record.planned.kind, .target = record.planned.target};
      answers[absl::StrCat(chaos::NameOf(kind.kind), " ", chaos::NameOf(kind.target))].push_back(
          record.answered_at - record.over_at);
    }
  }
  std::string text;
  for (auto& [kind, times] : answers) {
    std::sort(times.begin(), times.end());
    absl::StrAppendFormat(&text, "  %-18s %4d answered, %s in the middle, %s at most\n", kind,
                          times.size(), LengthText(times[times.size() / 2]),
                          LengthText(times.back()));
  }
  return text;
}

json RecordJson(const FaultRecord& record, MonoTime began) {
  const bool is_done = record.IsDone();
  const bool is_answered = record.state == State::kAnswered;
  const bool takes_time = Lasts(record.planned.kind);
  const auto seconds = [](bool is_known, Duration time) {
    return is_known ? json(ToSeconds(time)) : json(nullptr);
  };
  return {{"fault", chaos::NameOf(record.planned.kind)},
          {"target", chaos::NameOf(record.planned.target)},
          {"state", NameOf(record.state)},
          {"what", record.what},
          {"at_s", seconds(is_done, record.begun_at - began)},
          {"length_s", seconds(takes_time, record.planned.length)},
          {"answered_after_s", seconds(is_answered, record.answered_at - record.begun_at)},
          {"generation_before", is_done ? json(record.generation_before) : json(nullptr)},
          {"generation_after", is_answered ? json(record.generation_after) : json(nullptr)},
          {"restarts",
           is_answered ? json(record.restarts_after - record.restarts_before) : json(nullptr)},
          {"failures", record.failures}};
}

template <class T>
json OrNull(const std::optional<T>& value) {
  return value.has_value() ? json(*value) : json(nullptr);
}

}  // namespace

Verdict Judge(const Campaign& campaign, const Outcome& outcome) {
  const std::vector<FaultRecord>& records = campaign.records();
  const size_t done = CountDone(records);
  if (const FaultRecord* lost = FirstLost(records)) {
    return JudgeLost(*lost, static_cast<size_t>(lost - records.data()) + 1, outcome);
  }
  if (campaign.end() == Campaign::End::kStopped) {
    return Bad(absl::StrCat("interrupted after ", Faults(done), " of ", records.size(),
                            "; all that were still there are lifted"),
               "");
  }
  if (campaign.end() == Campaign::End::kNeverRan) {
    return Bad(absl::StrCat("the workers never all ran: the job is ",
                            outcome.view.answers ? outcome.view.phase : "not to be found",
                            outcome.view.reason.empty() ? "" : " (", outcome.view.reason,
                            outcome.view.reason.empty() ? "" : ")"),
               Advice(outcome));
  }
  if (outcome.job_exit_code.value_or(0) != 0) {
    return Bad(
        absl::StrCat("the job has ended with ", *outcome.job_exit_code, " after ", Faults(done)),
        Advice(outcome));
  }
  if (done == 0) {
    return Bad("no fault was injected", records.empty() ? "" : records.front().what);
  }
  if (outcome.verify_exit_code.value_or(0) != 0) {
    return Bad(absl::StrCat("the job has ended with 0 after ", Faults(done), ", but --verify says ",
                            *outcome.verify_exit_code),
               "");
  }
  const size_t left = records.size() - done;
  return {
      .is_good = true,
      .text = absl::StrCat("survived ", Faults(done),
                           left > 0 ? absl::StrCat(" (", left, " of the plan were not done)") : "",
                           outcome.job_runs_on ? ", and runs on" : ", and ended with 0")};
}

Duration TimeLost(const std::vector<FaultRecord>& records) {
  std::vector<std::pair<MonoTime, MonoTime>> spans;
  for (const FaultRecord& record : records) {
    if (record.state == State::kAnswered && record.generation_after > record.generation_before) {
      spans.emplace_back(record.begun_at, record.answered_at);
    }
  }
  std::sort(spans.begin(), spans.end());
  Duration lost{};
  MonoTime counted_until{};
  for (const auto& [begin, end] : spans) {
    const MonoTime from = std::max(begin, counted_until);
    lost += std::max(end - from, Duration::zero());
    counted_until = std::max(counted_until, end);
  }
  return lost;
}

std::string RecordText(const std::vector<FaultRecord>& records, size_t index) {
  const FaultRecord& record = records[index];
  const std::string head = absl::StrCat(index + 1, "/", records.size(), " ");
  switch (record.state) {
    case State::kPlanned:
      return absl::StrCat(head, TextOf(record.planned));
    case State::kSkipped:
      return absl::StrCat(head, TextOf(record.planned), ": left out, ", record.what);
    case State::kUnderWay:
    case State::kOver:
      return absl::StrCat(head, chaos::NameOf(record.planned.kind), " ", record.what,
                          Lasts(record.planned.kind)
                              ? absl::StrCat(" for ", LengthText(record.planned.length))
                              : "");
    case State::kAnswered:
      return absl::StrCat(head, chaos::NameOf(record.planned.kind), " ", record.what, ": ",
                          Answer(record));
    case State::kUnanswered:
      return absl::StrCat(head, chaos::NameOf(record.planned.kind), " ", record.what,
                          ": not answered");
  }
  return "";
}

std::string ReportText(const Campaign& campaign, const Outcome& outcome) {
  const std::vector<FaultRecord>& records = campaign.records();
  const Verdict verdict = Judge(campaign, outcome);
  std::string text = absl::StrCat("verdict: ", verdict.text, "\n");
  if (!verdict.advice.empty()) {
    absl::StrAppend(&text, "  ", verdict.advice, "\n");
  }
  absl::StrAppend(&text, Summary(records));
  absl::StrAppend(&text, "  job ", outcome.run_id, ": ", outcome.view.generation, " generations, ",
                  outcome.view.restarts_used, " of ", outcome.view.max_restarts, " restarts, ",
                  outcome.view.membership_changes, " membership changes\n");
  if (outcome.lasted.has_value()) {
    absl::StrAppend(&text, "  ", LengthText(TimeLost(records)), " of ", LengthText(*outcome.lasted),
                    " without all workers because of faults\n");
  }
  for (const std::string& failure : campaign.unexplained()) {
    absl::StrAppend(&text, "  a failure that no open fault explains: ", failure, "\n");
  }
  if (outcome.seed.has_value()) {
    absl::StrAppend(&text, "  the same plan again: --seed ", *outcome.seed, "\n");
  }
  return text;
}

std::string ReportJson(const Campaign& campaign, const Outcome& outcome) {
  const Verdict verdict = Judge(campaign, outcome);
  json faults = json::array();
  for (const FaultRecord& record : campaign.records()) {
    faults.push_back(RecordJson(record, campaign.began_at().value_or(MonoTime{})));
  }
  const JobView& view = outcome.view;
  const json report = {
      {"v", kReportVersion},
      {"survived", verdict.is_good},
      {"verdict", verdict.text},
      {"advice", verdict.advice},
      {"seed", OrNull(outcome.seed)},
      {"job", outcome.run_id},
      {"job_exit_code", OrNull(outcome.job_exit_code)},
      {"verify_exit_code", OrNull(outcome.verify_exit_code)},
      {"generations", view.generation},
      {"restarts_used", view.restarts_used},
      {"max_restarts", view.max_restarts},
      {"membership_changes", view.membership_changes},
      {"lasted_s", outcome.lasted.has_value() ? json(ToSeconds(*outcome.lasted)) : json(nullptr)},
      {"lost_s", ToSeconds(TimeLost(campaign.records()))},
      {"answered", CountOf(campaign.records(), State::kAnswered)},
      {"unexplained_failures", campaign.unexplained()},
      {"faults", faults}};
  return report.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string RestartWarning(const FaultPlan& plan, const JobView& view) {
  const int left = view.max_restarts - view.restarts_used;
  const auto faults = static_cast<int64_t>(plan.faults.size());
  if (left >= faults) {
    return "";
  }
  return absl::StrCat(faults, " faults may use up as many restarts, and the job has ", left,
                      " left of --max-restarts ", view.max_restarts,
                      ": when they are used up, it ends; start it with --max-restarts ",
                      view.restarts_used + faults, " or more");
}

}  // namespace fsdprun::chaos
