#include "fsdpctl/run/top_session.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <vector>

#include "absl/strings/str_cat.h"
#include "fsdpctl/jobs/status_text.h"
#include "fsdpctl/run/command_end.h"
#include "fsdpctl/run/job_command.h"
#include "fsdpctl/top/make_frame.h"
#include "fsdpctl/top/screen_text.h"

namespace fsdprun {
namespace {

constexpr Duration kTick = std::chrono::seconds(1);
/// More than any screen has lines.
constexpr size_t kEventsKept = 500;

/// Does to this process what the signal does if nobody watches it.
void LetAct(int signal) {
  sigset_t one;
  sigset_t before;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::signal(signal, SIG_DFL);
  ::pthread_sigmask(SIG_UNBLOCK, &one, &before);
  ::raise(signal);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace

// --- Which job

std::string ChosenJob::name() const {
  const MutexLock lock(mu_);
  return name_;
}

void ChosenJob::Answered(const v1::JobStatus& status) {
  const MutexLock lock(mu_);
  run_id_ = status.job();
  if (name_.empty()) {
    name_ = absl::StrCat(status.coordinator().pid());
  }
}

void ChosenJob::NotFound() {
  const MutexLock lock(mu_);
  if (!run_id_.empty()) {
    name_ = run_id_;
  }
}

// --- The session

TopSession::TopSession(const JobOptions& options, const Environment& environment)
    : options_(options),
      environment_(environment),
      signals_(loop_,
               {.signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH},
                .on_signal = [this](int signal) { OnSignal(signal); }},
               {}),
      chosen_(std::make_shared<ChosenJob>(options.job)) {}

TopSession::~TopSession() { loop_.Cancel(timer_); }

absl::Status TopSession::Run() {
  top::UseTerminalsCharacters();
  if (absl::Status status = top::CheckTerminal(environment_); !status.ok()) {
    return status;
  }
  BeginFeeds();
  Tick();
  loop_.Run();
  const bool was_shown = screen_ != nullptr;
  if (was_shown) {
    loop_.Unwatch(STDIN_FILENO);
    screen_.reset();
    Show(absl::StrCat("fsdpctl top: ", top::ScreenText(link_.LastWords()), "\n"));
  }
  if (ending_signal_ != 0) {
    LetAct(ending_signal_);
  }
  return result_;
}

JobFeed::Ask TopSession::Asking(const v1::ControlQuestion& question) const {
  return [options = options_, &environment = environment_, chosen = chosen_, question](
             const std::function<void(const v1::ControlAnswer&)>& on_answer, CallStop* stop) {
    JobOptions present = options;
    present.job = chosen->name();
    absl::Status status =
        AskChosenJob(present, environment, question, on_answer, std::nullopt, stop);
    if (absl::IsNotFound(status)) {
      chosen->NotFound();
    }
    return status;
  };
}

void TopSession::BeginFeeds() {
  v1::ControlQuestion question;
  question.mutable_status()->set_follow(true);
  question.mutable_status()->set_with_workers(true);
  states_ = std::make_unique<JobFeed>(
      loop_, Asking(question),
      JobFeed::Callbacks{
          .on_asked = [this] { link_.Asked(MonoNow()); },
          .on_answer = [this](const v1::ControlAnswer& answer) { OnStatus(answer.status()); },
          .on_ended = [this](const absl::Status& status) { return OnEnded(status); }});
}

// --- What the job says

void TopSession::OnStatus(const v1::JobStatus& status) {
  const bool is_first = !link_.has_answered();
  const MonoTime now = MonoNow();
  chosen_->Answered(status);
  link_.Answered(status, now);
  rate_.See(status.generation(), status.has_progress_age_ns() ? status.progress().step() : -1, now);
  snapshot_.status = status;
  snapshot_.steps_per_second = rate_.per_second();
  if (is_first) {
    v1::ControlQuestion question;
    question.mutable_events()->set_follow(true);
    events_ = std::make_unique<JobFeed>(
        loop_, Asking(question),
        JobFeed::Callbacks{
            .on_asked = [this] { are_events_new_ = true; },
            .on_answer = [this](const v1::ControlAnswer& answer) { OnEvents(answer.events()); },
            .on_ended = [this](const absl::Status& /*status*/) { return !link_.is_over(); }});
    OpenScreen();
  }
  Draw();
}

/// Another call tells all that are still known again.
void TopSession::OnEvents(const v1::EventLines& lines) {
  std::vector<std::string>& events = snapshot_.events;
  if (std::exchange(are_events_new_, false)) {
    events.clear();
  }
  for (const std::string& line : lines.lines()) {
    events.push_back(EventText(line));
  }
  const size_t extra = events.size() - std::min(events.size(), kEventsKept);
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(extra));
  Draw();
}

bool TopSession::OnEnded(const absl::Status& status) {
  if (!link_.has_answered()) {
    Quit(status.ok() ? absl::UnavailableError("the coordinator has not answered") : status);
    return false;
  }
  link_.Ended(absl::IsCancelled(status) ? absl::UnavailableError("the coordinator did not answer")
                                        : status);
  if (link_.is_over()) {
    snapshot_.status->set_phase(link_.last().phase());
  }
  Draw();
  return !link_.is_over();
}

// --- What people do

void TopSession::OnKeys(uint32_t events) {
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    Quit(absl::OkStatus());
    return;
  }
  for (top::Key key; (key = screen_->Read()) != top::Key::kNone;) {
    if (key == top::Key::kQuit && !view_.shows_help) {
      Quit(absl::OkStatus());
      return;
    }
    view_ = top::After(view_, key, page_);
    Draw();  // Says how far it can be scrolled.
  }
}

void TopSession::OnSignal(int signal) {
  switch (signal) {
    case SIGTSTP:
      Suspend();
      break;
    case SIGCONT:
      link_.Asked(MonoNow());  // Nobody has listened meanwhile.
      if (screen_ != nullptr) {
        screen_->Return();
      }
      break;
    case SIGWINCH:
      if (screen_ != nullptr) {
        screen_->Resize();
      }
      break;
    default:
      ending_signal_ = signal;
      Quit(absl::OkStatus());
      return;
  }
  Draw();
}

/// Goes on where it is continued, or at once where nobody could continue it.
void TopSession::Suspend() {
  if (screen_ != nullptr) {
    screen_->Leave();
  }
  LetAct(SIGTSTP);
  if (screen_ != nullptr) {
    screen_->Return();
  }
}

void TopSession::Quit(absl::Status status) {
  result_ = std::move(status);
  loop_.Stop();
}

// --- The screen

void TopSession::OpenScreen() {
  absl::StatusOr<std::unique_ptr<top::Screen>> screen = top::Screen::Open(environment_);
  if (!screen.ok()) {
    Quit(screen.status());
    return;
  }
  screen_ = *std::move(screen);
  loop_.Watch(STDIN_FILENO, EPOLLIN, [this](uint32_t events) { OnKeys(events); });
}

void TopSession::Tick() {
  if (link_.IsStuck(MonoNow())) {
    states_->Again();
  }
  Draw();
  timer_ = loop_.At(MonoNow() + kTick, [this] { Tick(); });
}

void TopSession::Draw() {
  if (screen_ == nullptr) {
    return;
  }
  snapshot_.trouble = link_.Trouble(MonoNow());
  const top::Frame frame = top::MakeFrame(snapshot_, view_, screen_->size());
  if (!view_.shows_help && frame.page > 0) {
    view_.first_row = frame.first_row;
    page_ = frame.page;
  }
  screen_->Draw(frame);
}

}  // namespace fsdprun
