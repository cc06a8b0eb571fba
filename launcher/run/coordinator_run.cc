#include "launcher/run/coordinator_run.h"

#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/descriptor_limit.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/directory/claim.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/directory/private_folder.h"
#include "launcher/journal/etcd_journal.h"
#include "launcher/report/failure_report.h"
#include "launcher/run/coordinator_port.h"
#include "launcher/run/job_end.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/notices.h"
#include "launcher/run/tls_setup.h"

namespace fsdprun {
namespace {

constexpr Duration kNoticeInterval = std::chrono::seconds(5);
constexpr Duration kSlowStop = std::chrono::seconds(1);
/// How long a stalled reader of our output may delay the exit.
constexpr Duration kDrainTimeout = std::chrono::seconds(10);
/// How long a search that a signal has interrupted may take to end, and a directory that is left.
constexpr Duration kDirectoryTimeout = std::chrono::seconds(2);
constexpr CliProgram kProgram = CliProgram::kFsdprun;
/// As of a launcher's place; less than the lease of a journal in etcd.
constexpr Duration kJobSureFor = std::chrono::seconds(7);
static_assert(kJobSureFor < std::chrono::seconds(EtcdJournal::kLeaseSeconds) &&
              kJobSureFor < kSilenceOfRefused);

/// Of a job all of whose nodes have heard how it ended.
bool IsAllOver(const Journal* journal) {
  return journal != nullptr && journal->found().has_value() && journal->found()->is_over &&
         journal->found()->nodes.empty();
}

}  // namespace

CoordinatorRun::CoordinatorRun(const LaunchPlan& plan, const Environment& environment,
                               std::optional<Inheritance> inheritance,
                               std::shared_ptr<const Tls> tls)
    : plan_(plan),
      environment_(environment),
      clocks_(plan.node_lease.has_value() ? ClocksFor(*plan.node_lease) : Clocks{}),
      signals_(loop_, {plan_.signals, [this](int signal) { OnSignal(signal); }},
               {plan_.forwarded_signals,
                [this](int signal) {
                  if (host_ != nullptr) {
                    host_->ForwardSignal(signal);
                  }
                }}),
      output_(loop_, kProgram, plan_, environment_),
      events_(loop_, {plan_.rdzv_id, HostName()}),
      tls_(std::move(tls)),
      inheritance_(std::move(inheritance)) {
  RaiseDescriptorLimit();
}

CoordinatorRun::~CoordinatorRun() = default;

int CoordinatorRun::Run() {
  if (const absl::Status status = Start(); !status.ok()) {
    output_.Print(status.message());
    LeaveDirectory();
    output_.console().Close(MonoNow() + kDrainTimeout);
    return 1;
  }
  ScheduleWaitNotice();
  if (!outcome_.has_value() && taken_.ok()) {  // The job that it takes over may have ended.
    loop_.Run();
  }
  return Finish();
}

absl::Status CoordinatorRun::Start() {
  for (const std::string& warning : plan_.warnings) {
    Log(LogLevel::kWarning, warning);
  }
  if (tls_ == nullptr) {
    ASSIGN_OR_RETURN(tls_, MakeTls(plan_));
  }
  RETURN_IF_ERROR(CheckCanServe(tls_.get()));
  if (HasOwnPlace()) {
    RETURN_IF_ERROR(Find());
  }
  if (inheritance_.has_value()) {
    TakeInheritance();
  }
  RETURN_IF_ERROR(OpenHost());
  RETURN_IF_ERROR(OpenPort());
  RETURN_IF_ERROR(taken_);
  BeginPlace();
  OpenMonitoring();
  TellOfStart();
  has_started_ = true;
  return absl::OkStatus();
}

// The journal first: who must not touch the job does not listen for its nodes either. Nor does who
// has only to say how it ended. What hangs is left to its thread.
absl::Status CoordinatorRun::Find() {
  struct Found {
    bool is_over = false;
    absl::StatusOr<std::unique_ptr<Journal>> journal = std::unique_ptr<Journal>();
    absl::StatusOr<std::unique_ptr<Directory>> directory = std::unique_ptr<Directory>();
    absl::StatusOr<Place> place = Place();
  };
  const auto found = std::make_shared<Found>();
  DirectoryContext context{
      .plan = plan_,
      .environment = environment_,
      .is_cancelled = [is_over = is_search_over_] { return is_over->load(); },
      .notify = [this, post = gate_.poster()](
                    const std::string& notice) { post([this, notice] { output_.Print(notice); }); },
      .on_taken = [this, post = gate_.poster()] { post([this] { OnClaimTaken(); }); },
      .tls = tls_};
  if (inheritance_.has_value()) {
    context.succession = {inheritance_->handover.claim, inheritance_->handover.token};
  }
  directory_thread_.Run(
      [found, context, journal = MakeJournalOptions()]() mutable {
        if (journal.place.is_given()) {
          found->journal = OpenJournal(journal);
        }
        if (!found->journal.ok() || IsAllOver(found->journal->get())) {
          return;
        }
        context.journal = *found->journal != nullptr ? (*found->journal)->identity() : "";
        found->directory = MakeDirectory(context);
        found->place = found->directory.ok() ? (*found->directory)->Find()
                                             : absl::StatusOr<Place>(found->directory.status());
      },
      [this, found] {
        found->is_over = true;
        loop_.Stop();
      });
  loop_.Run();
  absl::Status interrupted = absl::CancelledError("interrupted while starting the coordinator");
  if (!found->is_over) {
    return taken_.ok() ? interrupted : taken_;
  }
  ASSIGN_OR_RETURN(journal_, std::move(found->journal));
  ASSIGN_OR_RETURN(directory_, std::move(found->directory));
  ASSIGN_OR_RETURN(place_, std::move(found->place));
  return own_signal_ == 0 ? absl::OkStatus() : interrupted;
}

/// Nodes that start later do not find a standby by the claim of the launcher before it. None starts
/// for a job that is over.
bool CoordinatorRun::HasOwnPlace() const {
  return !inheritance_.has_value() ||
         (!inheritance_->handover.claim.empty() && !inheritance_->record->is_over);
}

/// Nodes that redial come where they were before.
void CoordinatorRun::TakeInheritance() {
  place_.endpoints = inheritance_->handover.endpoints;
  place_.token.value = inheritance_->handover.token;
  std::move(inheritance_->listeners.begin(), inheritance_->listeners.end(),
            std::back_inserter(place_.listeners));
}

/// What the coordinator before this one has left.
const std::optional<job::Record>& CoordinatorRun::found() const {
  static const std::optional<job::Record> kNothing;
  if (inheritance_.has_value()) {
    return inheritance_->record;
  }
  return journal_ != nullptr ? journal_->found() : kNothing;
}

JournalOptions CoordinatorRun::MakeJournalOptions() {
  return {
      .place = plan_.journal,
      .etcd = plan_.etcd,
      .job = {plan_.rdzv_id, plan_.min_nodes, plan_.max_nodes, plan_.max_restarts},
      .holder_id = RandomHex(8),
      .is_cancelled = [is_over = is_search_over_] { return is_over->load(); },
      .notify = [this, post = gate_.poster()](
                    const std::string& notice) { post([this, notice] { output_.Print(notice); }); },
      .on_taken = [this, post = gate_.poster()](
                      const absl::Status& why) { post([this, why] { OnJournalTaken(why); }); }};
}

JobSpec CoordinatorRun::MakeSpec() const {
  JobSpec spec = MakeJobSpec(plan_, clocks_);
  spec.may_be_taken_over = journal_ != nullptr;
  spec.rejoin_grace = std::max(spec.rejoin_grace, 2 * clocks_.stream_silence);
  spec.place_sure_for = CanBeTaken() ? kJobSureFor : Duration::zero();
  return spec;
}

void CoordinatorRun::OpenKeeper() {
  keeper_ = std::make_unique<JournalKeeper>(
      loop_, JournalKeeper::Options{
                 .write = [journal = journal_](
                              const job::Record& record) { return journal->Write(record); },
                 .tell =
                     [this](const std::string& text) {
                       if (has_started_) {  // Else it does not start, for that reason.
                         Log(LogLevel::kWarning, text);
                       }
                     },
                 .on_taken = [this](const absl::Status& why) { OnJournalTaken(why); },
                 .medium = plan_.journal.etcd.empty() ? "its file system" : "etcd"});
}

absl::Status CoordinatorRun::OpenHost() {
  CoordinatorHost::Hooks hooks;
  hooks.on_finish = [this](const JobOutcome& outcome) {
    outcome_ = outcome;
    loop_.Stop();
  };
  hooks.on_step = [this] { TrackStop(); };
  events_.OpenForCoordinator(plan_);
  hooks.on_news = [this](const job::News& news) {
    events_.Record(news, host_->history().ledger());
  };
  RecordFindings(events_, &hooks);
  hooks.on_other_host = [this](const std::vector<std::string>& where) {
    Log(LogLevel::kWarning,
        absl::StrCat("another launcher, at ", absl::StrJoin(where, ", "),
                     ", hosts a job with run id '", plan_.rdzv_id,
                     "' too, and neither can join the other; end one of the two jobs"));
  };
  CoordinatorHost::Options options{
      .spec = MakeSpec(),
      .run_id = plan_.rdzv_id,
      .token = place_.token.value,
      .stream_silence = clocks_.stream_silence,
      .tls = tls_,
      .watch = MakeWatchOptions(plan_),
      .control = {
          .folder = RuntimeFolder(environment_), .node = HostName(), .endpoint = place_.where()}};
  hooks.on_check_place = [this] { StepPlace(place::CheckOrdered{}); };
  if (journal_ != nullptr) {
    OpenKeeper();
    hooks.persist = [this](const job::Record& record) { keeper_->Keep(record); };
    if (journal_->can_be_taken()) {
      options.sure_until = [journal = journal_] { return journal->sure_until(); };
    }
  }
  options.record = found();
  if (options.record.has_value()) {
    if (std::string why = job::WhyUnusable(*options.record, options.spec); !why.empty()) {
      return absl::FailedPreconditionError(
          absl::StrCat(inheritance_.has_value()
                           ? "the job"
                           : absl::StrCat("--journal: the job in ", ToString(plan_.journal)),
                       " cannot be taken over: ", why));
    }
  }
  host_ = std::make_unique<CoordinatorHost>(loop_, std::move(options), std::move(hooks));
  RETURN_IF_ERROR(host_->Start());
  return keeper_ != nullptr ? keeper_->problem() : absl::OkStatus();
}

absl::Status CoordinatorRun::OpenPort() {
  StoreServer::Limits limits;
  limits.only_hands_over = true;
  port_ = std::make_unique<StoreServer>(
      loop_, limits, [this](UniqueFd connection) { host_->AddConnection(std::move(connection)); });
  for (UniqueFd& listener : place_.listeners) {
    RETURN_IF_ERROR(port_->ListenOn(std::move(listener)).status());
  }
  place_.listeners.clear();
  if (found().has_value()) {
    host_->TakeOver();
  }
  if (inheritance_.has_value()) {
    host_->AgentDied(inheritance_->handover.agent);
  }
  return absl::OkStatus();
}

void CoordinatorRun::OpenMonitoring() {
  health_port_ = OpenCoordinatorPort(loop_, environment_, plan_.rdzv_id, *host_);
}

void CoordinatorRun::TellOfStart() {
  const JobMachine& job = host_->machine();
  if (inheritance_.has_value()) {
    output_.Print(absl::StrCat("the launcher of this node (pid ", inheritance_->handover.pid,
                               ") has died; the job's coordinator goes on at ", place_.where(),
                               " as pid ", ::getpid(), ": generation ", job.generation().value(),
                               ", ", std::string(job::PhaseName(job.phase())), ". The same command",
                               plan_.is_host == true ? ", with is_host=0 in --rdzv-conf," : "",
                               " joins this node again; `kill ", ::getpid(), "` ends the job"));
    return;
  }
  const bool takes_over = found().has_value();
  if (takes_over && journal_->found()->is_over) {
    output_.Print(absl::StrCat(
        "the job in ", ToString(plan_.journal), " is over: ", std::string(job.reason()),
        ". Give a new job ", plan_.journal.etcd.empty() ? "a folder" : "a run id", " of its own"));
    return;
  }
  output_.Print(absl::StrCat(
      "coordinator of run id '", plan_.rdzv_id, "' at ", place_.where(),
      !takes_over ? ""
                  : absl::StrCat("; takes the job over: generation ", job.generation().value(),
                                 ", ", std::string(job::PhaseName(job.phase()))),
      journal_ != nullptr ? "" : "; without --journal, the job ends with this process"));
}

void CoordinatorRun::ScheduleWaitNotice() {
  loop_.At(MonoNow() + kNoticeInterval, [this] {
    const JobMachine& job = host_->machine();
    if (job.is_pausing()) {
      output_.Print(std::string(job.reason()));
    } else if (job.phase() == job::Phase::kRendezvous) {
      output_.Print(absl::StrCat(std::string(job.reason()), " at ", place_.where(), " (",
                                 DescribeWait(job.join_deadline(), plan_.join_timeout, MonoNow()),
                                 ")"));
    }
    ScheduleWaitNotice();
  });
}

// Tells of a stop only once it takes its time.
void CoordinatorRun::TrackStop() {
  if (host_ == nullptr || host_->machine().phase() != job::Phase::kStopping) {
    return;
  }
  const JobMachine& job = host_->machine();
  const std::pair stop(job.generation(), job.operator_signal().has_value());
  if (std::exchange(noticed_stop_, stop) == stop) {
    return;
  }
  loop_.At(MonoNow() + kSlowStop, [this] {
    const std::optional<job::StopStatus> slow = host_->machine().stop();
    if (slow.has_value() && IsWorthTelling(*slow, MonoNow())) {
      output_.Print(DescribeStop(*slow, MonoNow()));
    }
  });
}

void CoordinatorRun::OnSignal(int signal) {
  own_signal_ = own_signal_ == 0 ? signal : own_signal_;
  *is_search_over_ = true;
  if (host_ != nullptr) {
    host_->OperatorStop(signal);
  } else {
    loop_.At(MonoNow() + kDirectoryTimeout, [this] { loop_.Stop(); });
  }
}

void CoordinatorRun::LeaveDirectory() {
  *is_search_over_ = true;
  if (directory_ == nullptr) {
    return;
  }
  // Not one who was stopped, and not a coordinator that does not even start.
  const bool closes = outcome_.has_value() && outcome_->kind != OutcomeKind::kStoppedBySignal;
  const auto has_left = std::make_shared<bool>(false);
  directory_thread_.Run(
      [directory = directory_, is_over = is_search_over_, closes] {
        *is_over = false;  // This is not cut short.
        directory->JobEnded(closes);
      },
      [has_left] { *has_left = true; });
  const MonoTime deadline = MonoNow() + kDirectoryTimeout;
  while (!*has_left && directory_thread_.Await(deadline)) {
  }
}

// What this coordinator has sent before is fenced by the numbers of its worlds.
void CoordinatorRun::OnJournalTaken(const absl::Status& why) {
  if (!taken_.ok()) {
    return;
  }
  taken_ = why;
  if (host_ != nullptr) {
    host_->Silence();
  }
  loop_.Stop();
}

int CoordinatorRun::Finish() {
  StepPlace(place::Leave{});
  LeaveDirectory();
  host_->Shutdown();
  if (!taken_.ok()) {
    output_.Print(taken_.message());
    output_.console().Close(MonoNow() + kDrainTimeout);
    return 1;
  }
  if (keeper_ != nullptr && !keeper_->problem().ok()) {
    output_.Print(absl::StrCat("the end of the job is not in its journal: ",
                               keeper_->problem().message(), ". Remove ", ToString(plan_.journal)));
  }
  events_.Finish(MonoNow() + EventLog::kPatience);
  ReportOutcome(*outcome_, {kProgram, plan_, environment_, output_.console(), loop_});
  output_.console().Close(MonoNow() + kDrainTimeout);
  return outcome_->exit_code;
}

}  // namespace fsdprun
