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

/// `kill worker`, `fill`.
std::string KindOf(const FaultRecord& record) {
  const std::string target = chaos::NameOf(record.planned.target);
  return absl::StrCat(chaos::NameOf(record.planned.kind), target.empty() ? "" : " ", target);
}

/// The first fault in that state; nullptr without one.
const FaultRecord* FirstIn(const std::vector<FaultRecord>& records, State state) {
  const auto found = std::find_if(records.begin(), records.end(),
                                  [state](const auto& record) { return record.state == state; });
  return found == records.end() ? nullptr : &*found;
}

std::string PhaseOf(const JobView& view) {
  if (!view.answers) {
    return view.is_there ? "not answering" : "not to be found";
  }
  return view.reason.empty() ? view.phase : absl::StrCat(view.phase, " (", view.reason, ")");
}

std::string Advice(const Outcome& outcome) {
  std::string advice;
  const JobView& view = outcome.view;
  if (view.run_id.empty()) {
    return "what was started has not become a job that this program can ask; what it has said is "
           "above";
  }
  if (view.max_restarts <= view.restarts_used) {
    absl::StrAppend(&advice, "restarts: ", view.restarts_used, " of ", view.max_restarts,
                    " are used up; if that is why it has ended, start it with a larger "
                    "--max-restarts. ");
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

Verdict Bad(std::string text, std::string advice = "") {
  return {.is_good = false, .text = std::move(text), .advice = std::move(advice)};
}

std::string Unfound(const Outcome& outcome) {
  return absl::StrCat(
      "its coordinator is nowhere to be found",
      outcome.gone_for.has_value() ? absl::StrCat(" for ", LengthText(*outcome.gone_for)) : "",
      ", and nobody knows how it has ended");
}

/// What the job did in place of an answer.
std::string WhyLost(const Campaign& campaign, const Outcome& outcome) {
  if (campaign.end() != Campaign::End::kJobOver) {
    return absl::StrCat("no answer within ", LengthText(campaign.options().patience),
                        " (--patience): the job is ", PhaseOf(campaign.view_at_end()));
  }
  if (!campaign.job_exit_code().has_value()) {
    return Unfound(outcome);
  }
  const std::string& reason = outcome.view.reason;
  return absl::StrCat("the job has ended with ", *campaign.job_exit_code(),
                      reason.empty() ? "" : absl::StrCat(" (", reason, ")"));
}

Verdict JudgeLost(const Campaign& campaign, const FaultRecord& lost, const Outcome& outcome) {
  const auto number = static_cast<size_t>(&lost - campaign.records().data()) + 1;
  return Bad(absl::StrCat("not survived: fault ", number, ", ", NameOf(lost.planned.kind), " ",
                          lost.what, ": ", WhyLost(campaign, outcome)),
             Advice(outcome));
}

/// Good but for what was not done at all; nothing if that is well.
std::optional<Verdict> JudgeWhatWasLeftOut(const Campaign& campaign) {
  const std::vector<FaultRecord>& records = campaign.records();
  const size_t all = records.size();
  const size_t not_begun = CountOf(records, State::kPlanned);
  const size_t left_out = CountOf(records, State::kSkipped);
  const FaultRecord* first = FirstIn(records, State::kSkipped);
  if (not_begun > 0) {
    return Bad(absl::StrCat("the job has ended before ", Faults(not_begun), " of ", all),
               "let it run longer, or let faults come sooner (--every), or fewer (--faults)");
  }
  if (left_out == all || (left_out > 0 && campaign.options().plan.has_fixed_times)) {
    return Bad(absl::StrCat(Faults(left_out), " of ", all, " could not be done"),
               absl::StrCat(TextOf(first->planned), ": ", first->what));
  }
  for (const FaultRecord& one : records) {
    const bool is_done = std::any_of(records.begin(), records.end(), [&](const FaultRecord& r) {
      return KindOf(r) == KindOf(one) && r.IsDone();
    });
    if (!is_done) {
      return Bad(absl::StrCat("no fault of kind ", KindOf(one), " could be done"), one.what);
    }
  }
  return std::nullopt;
}

std::string Answer(const FaultRecord& record) {
  const std::string after = LengthText(record.answered_at - record.begun_at);
  if (record.world_after < record.world_before) {
    return absl::StrCat("the job got on with ", record.world_after, " of ", record.world_before,
                        " workers, seen after ", after, ", generation ", record.generation_after);
  }
  if (record.generation_after == record.generation_before) {
    return absl::StrCat("the job went on, seen after ", after);
  }
  return absl::StrCat("all workers got on after ", after, ", generation ", record.generation_after,
                      record.restarts_after > record.restarts_before
                          ? absl::StrCat(", restart ", record.restarts_after)
                          : ", no restart charged");
}

/// Kind and target, how many there were, and how long the answers took.
std::string Summary(const std::vector<FaultRecord>& records) {
  std::map<std::string, std::vector<Duration>> answers;
  for (const FaultRecord& record : records) {
    if (record.state == State::kAnswered) {
      answers[KindOf(record)].push_back(record.answered_at - record.over_at);
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
  if (!outcome.could_not.empty()) {
    return Bad(absl::StrCat("fsdprun chaos could not go on: ", outcome.could_not));
  }
  if (const FaultRecord* lost = FirstIn(records, State::kUnanswered)) {
    return JudgeLost(campaign, *lost, outcome);
  }
  if (outcome.is_interrupted) {
    return Bad(
        absl::StrCat("interrupted after ", Faults(done), "; all that were still there are lifted"));
  }
  if (campaign.end() == Campaign::End::kNeverRan) {
    return Bad(
        absl::StrCat("the workers did not all run within ", LengthText(campaign.options().patience),
                     " (--patience): the job is ", PhaseOf(campaign.view_at_end())),
        Advice(outcome));
  }
  if (outcome.gone_for.has_value()) {
    return Bad(absl::StrCat("after ", Faults(done), " ", Unfound(outcome)), Advice(outcome));
  }
  if (outcome.job_exit_code.value_or(0) != 0) {
    return Bad(
        absl::StrCat("the job has ended with ", *outcome.job_exit_code, " after ", Faults(done)),
        Advice(outcome));
  }
  if (records.empty()) {
    return Bad("no fault came within the --duration");
  }
  if (std::optional<Verdict> verdict = JudgeWhatWasLeftOut(campaign)) {
    return *std::move(verdict);
  }
  if (outcome.verify_exit_code.value_or(0) != 0) {
    return Bad(absl::StrCat("the job has ended with 0 after ", Faults(done), ", but --verify says ",
                            *outcome.verify_exit_code));
  }
  const size_t left = records.size() - done;
  return {.is_good = true,
          .text = absl::StrCat("survived ", Faults(done),
                               left > 0 ? absl::StrCat(" (", left, " could not be done)") : "",
                               outcome.job_runs_on ? ", and runs on" : ", and ended with 0")};
}

Duration TimeLost(const std::vector<FaultRecord>& records) {
  std::vector<std::pair<MonoTime, MonoTime>> spans;
  for (const FaultRecord& record : records) {
    if (record.state == State::kAnswered && record.generation_after > record.generation_before) {
      spans.emplace_back(record.begun_at, record.runs_since.value_or(record.answered_at));
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

std::string RecordText(const Campaign& campaign, size_t index) {
  const FaultRecord& record = campaign.records()[index];
  const std::string head = campaign.options().duration.has_value()
                               ? absl::StrCat(index + 1, " ")
                               : absl::StrCat(index + 1, "/", campaign.records().size(), " ");
  const std::string whom = absl::StrCat(chaos::NameOf(record.planned.kind), " ", record.what);
  switch (record.state) {
    case State::kPlanned:
      return absl::StrCat(head, TextOf(record.planned));
    case State::kSkipped:
      return absl::StrCat(head, TextOf(record.planned), ": left out, ", record.what);
    case State::kUnderWay:
    case State::kOver:
      return absl::StrCat(head, whom,
                          Lasts(record.planned.kind)
                              ? absl::StrCat(" for ", LengthText(record.planned.length))
                              : "");
    case State::kAnswered:
      return absl::StrCat(head, whom, ": ", Answer(record));
    case State::kUnanswered:
      return absl::StrCat(head, whom, ": not answered");
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
  absl::StrAppend(&text, "  job ", outcome.run_id, ": generation ", outcome.view.generation, ", ",
                  outcome.view.restarts_used, " of ", outcome.view.max_restarts, " restarts, ",
                  outcome.view.membership_changes, " changes of membership\n");
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

std::string DamageWarning(const FaultPlan& plan, bool has_verify) {
  const bool is_damaging =
      std::any_of(plan.faults.begin(), plan.faults.end(),
                  [](const PlannedFault& fault) { return fault.kind == FaultKind::kCorrupt; });
  if (!is_damaging || has_verify) {
    return "";
  }
  return "a checkpoint is damaged, and that the job goes on does not tell that it has noticed: it "
         "may train on the damaged weights; a --verify that compares its result with that of an "
         "undisturbed run tells (of a job that runs already, with --until-end)";
}

std::string RestartWarning(const FaultPlan& plan, const JobView& view) {
  const int left = view.max_restarts - view.restarts_used;
  // Others may, if the job takes their victims for lost.
  const auto costly =
      std::count_if(plan.faults.begin(), plan.faults.end(), [](const PlannedFault& fault) {
        return fault.kind == FaultKind::kKill || fault.kind == FaultKind::kCorrupt;
      });
  if (left >= costly) {
    return "";
  }
  return absl::StrCat(costly, costly == 1 ? " kill" : " kills",
                      " may use up as many restarts, and the job has ", left,
                      " left of --max-restarts ", view.max_restarts,
                      ": when they are used up, it ends; start it with --max-restarts ",
                      view.restarts_used + costly, " or more");
}

}  // namespace fsdprun::chaos
