#include "launcher/run/job_watch.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/log.h"

namespace fsdprun {
namespace {

/// Of those that do not move, and of those that wait, the stacks of so many are read: more say the
/// same.
constexpr size_t kCulpritsRead = 3;
/// Ranks in the table of a report.
constexpr size_t kRanksShown = 512;
/// A stack may be long; the log has its beginning, the file all.
constexpr size_t kStackInLog = 4000;

std::string LineOf(int rank, const v1::WorkerVitals& vitals) {
  std::string line = absl::StrCat("rank ", rank, "  pid ", vitals.pid(), "  state ",
                                  std::string(1, static_cast<char>(vitals.state())));
  if (vitals.has_own()) {
    const v1::OwnVitals& own = vitals.own();
    absl::StrAppend(&line, "  step ", own.step(), "  ", own.phase(), "  collectives ",
                    own.collectives_begun(), " begun ", own.collectives_ended(), " ended");
    if (own.collectives_begun() > own.collectives_ended()) {
      absl::StrAppend(&line, "  in ", own.collective(), " of ", own.unit());
    }
  }
  return line;
}

}  // namespace

std::string DescribeAction(OnHang on_hang, const watch::HangFound& hang) {
  if (on_hang == OnHang::kReport) {
    return "nothing is done about it (--on-hang=report)";
  }
  const std::string option = absl::StrCat(" (--on-hang=", OnHangName(on_hang), ")");
  if (hang.act_after == Duration::max()) {
    return absl::StrCat("nothing is done about it, because this job has not shown yet how long it ",
                        "may be silent; --hang-timeout=SECONDS sets that", option);
  }
  const std::string action = on_hang == OnHang::kRestart
                                 ? "all workers are stopped, as after a failure"
                                 : "the job is ended";
  return hang.act_after <= hang.lasted
             ? action + option
             : absl::StrCat(action, " if it lasts for ", watch::TextOf(hang.act_after), option);
}

JobWatch::JobWatch(EventLoop& loop, const JobMachine& machine, NodeAsides& asides,
                   const Options& options, Hooks hooks)
    : loop_(loop),
      machine_(machine),
      asides_(asides),
      options_(options),
      hooks_(std::move(hooks)),
      watch_(options_.watch) {}

JobWatch::~JobWatch() { Close(); }

void JobWatch::Close() {
  is_closed_ = true;
  loop_.Cancel(timer_);
  if (report_.has_value()) {
    loop_.Cancel(report_->timer);
    report_.reset();
  }
}

// --- The world

void JobWatch::Stepped(const job::Event& event) {
  if (is_closed_) {
    return;
  }
  const bool runs = machine_.phase() == job::Phase::kRunning;
  const Generation now_running = runs ? machine_.generation() : Generation();
  if (now_running != generation_) {
    generation_ = now_running;
    if (runs) {
      BeginWorld();
    } else {
      EndWorld();
    }
  } else if (const auto* message = std::get_if<FromAgent>(&event);
             runs && message != nullptr && std::holds_alternative<AgentJoined>(message->message)) {
    Want(message->incarnation);  // On its new stream.
  }
  if (runs && std::exchange(step_, machine_.progress().step) != machine_.progress().step) {
    Feed(watch::StepReported{step_});
  }
}

Duration JobWatch::Every() const {
  const auto nodes = static_cast<int64_t>(machine_.world().members().size());
  return std::max<Duration>(std::chrono::seconds(1),
                            std::chrono::milliseconds(1000 * nodes / kVitalsPerSecond));
}

void JobWatch::BeginWorld() {
  table_.Begin(generation_);
  step_ = machine_.progress().step;
  watch::WorldBegan began{generation_, {}, Every()};
  for (const auto& member : machine_.world().members()) {
    began.nodes.push_back(
        {member->name, member->assignment.rank_offset, member->assignment.local_world_size});
  }
  std::sort(began.nodes.begin(), began.nodes.end(),
            [](const auto& a, const auto& b) { return a.first_rank < b.first_rank; });
  Feed(began);
  for (const auto& member : machine_.world().members()) {
    Want(member->incarnation);
  }
}

void JobWatch::EndWorld() {
  Feed(watch::WorldEnded{});
  for (const Incarnation agent : std::exchange(wanted_, {})) {
    asides_.WantVitals(agent, /*every_ns=*/0);
  }
}

void JobWatch::Want(Incarnation agent) {
  wanted_.insert(agent);
  asides_.WantVitals(agent, Every().count());
}

void JobWatch::Hear(const v1::NodeVitals& vitals) {
  if (!is_closed_ && table_.Take(vitals, MonoNow())) {
    Feed(SamplesOf(vitals));
  }
}

void JobWatch::Feed(const watch::Event& event) {
  if (!options_.is_on) {
    return;
  }
  for (watch::Finding& finding : watch_.Step(event, MonoNow())) {
    std::visit([this](auto& what) { Tell(std::move(what)); }, finding);
  }
  Schedule();
  if (watch_.IsToBeActedOn()) {
    Act();
  }
}

void JobWatch::Schedule() {
  loop_.Cancel(timer_);
  timer_ = 0;
  if (!is_closed_ && watch_.wake_at() != MonoTime::max()) {
    timer_ = loop_.At(watch_.wake_at(), [this] { Feed(watch::TimerDue{}); });
  }
}

// --- What is found

void JobWatch::Tell(watch::HangFound hang) {
  hang.action = OnHangName(options_.on_hang);
  Log(LogLevel::kWarning,
      absl::StrCat("the job hangs: ", hang.what, "; ", DescribeAction(options_.on_hang, hang)));
  hooks_.tell(hang);
  ReadStacks(std::move(hang));
}

void JobWatch::Tell(const watch::HangEnded& ended) {
  Log(LogLevel::kWarning, absl::StrCat("the hang is over after another ",
                                       watch::TextOf(ended.after), ": ", ended.what));
  hooks_.tell(ended);
}

void JobWatch::Tell(const watch::SlowFound& slow) {
  Log(LogLevel::kWarning, slow.what);
  hooks_.tell(slow);
}

void JobWatch::Tell(const watch::SlowEnded& ended) {
  Log(LogLevel::kInfo, ended.what);
  hooks_.tell(ended);
}

// --- Stacks

const World::Member* JobWatch::MemberWith(int rank) const {
  for (const auto& member : machine_.world().members()) {
    const RankAssignment& place = member->assignment;
    if (rank >= place.rank_offset && rank < place.rank_offset + place.local_world_size) {
      return member.get();
    }
  }
  return nullptr;
}

void JobWatch::ReadStacks(watch::HangFound hang) {
  if (report_.has_value()) {
    FinishReport();
  }
  std::vector<int> ranks;
  for (const watch::RankPlace& place : hang.culprits) {
    if (ranks.size() < kCulpritsRead) {
      ranks.push_back(place.rank);
    }
  }
  // Where nobody in particular is to blame, one rank shows where all are.
  const int witness = hang.witness >= 0 ? hang.witness : hang.culprits.empty() ? 0 : -1;
  if (witness >= 0) {
    ranks.push_back(witness);
  }
  report_ = Report{std::move(hang), generation_, {}, {}, {}, 0};
  report_->timer = loop_.At(MonoNow() + kStacksPatience, [this] { FinishReport(); });
  std::map<const World::Member*, std::vector<int>> by_node;
  for (const int rank : ranks) {
    if (const World::Member* member = MemberWith(rank)) {
      const auto seen = table_.entries().find(rank);
      report_->places.push_back(
          {rank, member->name, seen == table_.entries().end() ? 0 : seen->second.vitals.pid()});
      by_node[member].push_back(rank);
    }
  }
  for (const auto& [member, of_node] : by_node) {
    Ask(*member, of_node);
  }
}

void JobWatch::Ask(const World::Member& member, const std::vector<int>& ranks) {
  v1::ToNodeAside question;
  for (const int rank : ranks) {
    question.mutable_stacks()->add_ranks(rank);
  }
  const auto id = std::make_shared<NodeAsides::Id>(0);
  *id = asides_.Ask(member.incarnation, std::move(question),
                    [this, id](const v1::NodeAnswer& answer) { OnAnswer(*id, answer); });
  report_->open.push_back(*id);
}

void JobWatch::OnAnswer(NodeAsides::Id id, const v1::NodeAnswer& answer) {
  if (!report_.has_value()) {
    return;
  }
  if (answer.has_stacks()) {
    report_->stacks[answer.stacks().rank()] = answer.stacks();
  }
  std::vector<NodeAsides::Id>& open = report_->open;
  if (answer.is_last()) {
    open.erase(std::remove(open.begin(), open.end(), id), open.end());
  }
  if (open.empty()) {
    FinishReport();
  }
}

/// All have answered, or their time is over.
void JobWatch::FinishReport() {
  const Report report = *std::exchange(report_, std::nullopt);
  loop_.Cancel(report.timer);
  for (const NodeAsides::Id id : report.open) {
    asides_.Drop(id);
  }
  watch::HangReported reported{report.hang.id, "", {}};
  for (const watch::RankPlace& place : report.places) {
    const auto read = report.stacks.find(place.rank);
    const bool is_read = read != report.stacks.end();
    reported.stacks.push_back(
        {place, is_read ? read->second.text() : "",
         is_read ? read->second.problem() : "its node did not answer within 2 s"});
    const watch::RankStacks& stacks = reported.stacks.back();
    Log(LogLevel::kWarning,
        absl::StrCat("stacks of rank ", place.rank, " on node ", place.node, ": ", stacks.problem,
                     stacks.text.empty() ? "" : "\n", stacks.text.substr(0, kStackInLog)));
  }
  if (hooks_.keep_report) {
    const std::string name = absl::StrCat("hang-", report.hang.id, ".txt");
    const std::string path = hooks_.keep_report(name, TextOf(report));
    reported.file = path.empty() ? "" : name;
    if (!path.empty()) {
      Log(LogLevel::kWarning, absl::StrCat("the stacks of the hang are in ", path));
    }
  }
  hooks_.tell(reported);
  if (watch_.IsToBeActedOn() && watch_.hang()->id == reported.id) {
    Act();
  }
}

/// Once, and with the stacks: what hangs cannot be asked afterwards.
void JobWatch::Act() {
  const watch::HangFound hang = *watch_.hang();
  if (options_.on_hang == OnHang::kReport || report_.has_value() || acted_on_ == hang.id) {
    return;
  }
  acted_on_ = hang.id;
  const Duration lasted = watch_.hang_lasted();
  // That workers disagree is no node's fault, and who is in the minority may be right.
  const bool is_of_one = !hang.culprits.empty() && hang.kind != watch::HangKind::kDisagree;
  const int rank = is_of_one ? hang.culprits.front().rank : -1;
  Log(LogLevel::kWarning, absl::StrCat("the hang has lasted for ", watch::TextOf(lasted), ": ",
                                       DescribeAction(options_.on_hang, hang)));
  watch_.Step(watch::ActedOnHang{}, MonoNow());
  hooks_.stop_world({generation_, rank, lasted, hang.what});
}

std::string JobWatch::TextOf(const Report& report) const {
  std::string text = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%SZ", absl::Now(), absl::UTCTimeZone()), "  generation ",
      report.generation.value(), "\n", report.hang.what, "\n",
      DescribeAction(options_.on_hang, report.hang), "\n\nThe workers, as last heard:\n");
  size_t shown = 0;
  for (const auto& [rank, entry] : table_.entries()) {
    if (shown++ == kRanksShown) {
      absl::StrAppend(&text, "and ", table_.entries().size() - kRanksShown, " more\n");
      break;
    }
    absl::StrAppend(&text, LineOf(rank, entry.vitals), "\n");
  }
  for (const watch::RankPlace& place : report.places) {
    const auto read = report.stacks.find(place.rank);
    absl::StrAppend(&text, "\nStacks of rank ", place.rank, " on node ", place.node, ":\n");
    if (read == report.stacks.end()) {
      absl::StrAppend(&text, "its node did not answer within 2 s\n");
    } else {
      absl::StrAppend(&text, read->second.problem(), read->second.problem().empty() ? "" : "\n",
                      read->second.text(), "\n");
    }
  }
  return text;
}

}  // namespace fsdprun
