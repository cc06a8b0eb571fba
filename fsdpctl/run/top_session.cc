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
#include "fsdpctl/top/aging.h"
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

// --- The session

TopSession::TopSession(const JobOptions& options, const Environment& environment)
    : options_(options),
      environment_(environment),
      signals_(loop_,
               {.signals = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH},
                .on_signal = [this](int signal) { OnSignal(signal); }},
               {}),
      pin_(options.job, options.endpoint.empty()) {}

TopSession::~TopSession() { loop_.Cancel(timer_); }

absl::Status TopSession::Run() {
  top::UseTerminalsCharacters();
  if (absl::Status status = top::CheckTerminal(environment_); !status.ok()) {
    return status;
  }
  BeginStates();
  Tick();
  loop_.Run();
  const bool was_shown = screen_ != nullptr;
  if (was_shown) {
    loop_.Unwatch(STDIN_FILENO);
    AwaitTerminal(false);
    screen_.reset();
    Show(absl::StrCat("fsdpctl top: ", top::ScreenText(link_.LastWords(MonoNow())), "\n"));
  }
  if (ending_signal_ != 0) {
    LetAct(ending_signal_);
  }
  return result_;
}

JobFeed::Ask TopSession::Asking(const v1::ControlQuestion& question, const std::string& job) const {
  JobOptions options = options_;
  options.job = job;
  return [options, &environment = environment_, question](
             const std::function<void(const v1::ControlAnswer&)>& on_answer, CallStop* stop) {
    return AskChosenJob(options, environment, question, on_answer, std::nullopt, stop);
  };
}

void TopSession::BeginStates() {
  v1::ControlQuestion question;
  question.mutable_status()->set_follow(true);
  question.mutable_status()->set_with_workers(true);
  states_ = std::make_unique<JobFeed>(
      loop_,
      JobFeed::Callbacks{
          .on_begin =
              [this, question] {
                link_.Asked(MonoNow());
                return Asking(question, pin_.name());
              },
          .on_answer = [this](const v1::ControlAnswer& answer) { OnStatus(answer.status()); },
          .on_ended = [this](const absl::Status& status) { return OnEnded(status); }});
}

/// Of whoever has answered last: lines do not say which job they are of.
void TopSession::BeginEvents() {
  v1::ControlQuestion question;
  question.mutable_events()->set_follow(true);
  events_ = std::make_unique<JobFeed>(
      loop_,
      JobFeed::Callbacks{
          .on_begin =
              [this, question] {
                are_events_new_ = true;
                return Asking(question, pin_.answerer());
              },
          .on_answer = [this](const v1::ControlAnswer& answer) { OnEvents(answer.events()); },
          .on_ended = [this](const absl::Status& /*status*/) { return !link_.is_over(); }});
}

// --- What the job says

void TopSession::OnStatus(const v1::JobStatus& status) {
  if (pin_.Takes(status)) {
    TakeStatus(status, MonoNow());
  } else {
    link_.Refused(pin_.WhyNot(status));
    states_->Again();
  }
  Draw();
}

void TopSession::TakeStatus(const v1::JobStatus& status, MonoTime now) {
  const bool is_first = !link_.has_answered();
  const bool was_lost = !is_first && !link_.Trouble(now).empty();
  link_.Answered(status, now);
  rate_.See(status.generation(), status.has_progress_age_ns() ? status.progress().step() : -1,
            now - Duration(status.progress_age_ns()));
  world_.See(status, now);
  snapshot_.status = status;
  aged_to_ = now;
  if (is_first) {
    BeginEvents();
    OpenScreen();
  } else if (was_lost) {
    events_->Again();  // That call may be lost, too.
  }
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
    Quit(status.ok() || absl::IsCancelled(status)
             ? absl::UnavailableError("the job's coordinator is there and does not answer; it may "
                                      "be stopped or very busy: ask again")
             : status);
    return false;
  }
  link_.Ended(status);
  if (absl::IsNotFound(status)) {
    pin_.NotFound();
  }
  if (link_.is_over()) {
    snapshot_.status.set_phase(link_.last().phase());
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
  for (top::Press press; (press = screen_->Read()).key != top::Key::kNone;) {
    if (top::IsQuit(view_, press)) {
      Quit(absl::OkStatus());
      return;
    }
    if (press.key == top::Key::kRedraw) {
      screen_->Redraw();
    }
    view_ = top::After(view_, press, page_);
    Draw();  // Says how far it can be scrolled.
  }
}

void TopSession::OnSignal(int signal) {
  switch (signal) {
    case SIGTSTP:
      Suspend();
      return;
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

/// Goes on at SIGCONT, or at once where nobody could continue it.
void TopSession::Suspend() {
  if (screen_ != nullptr) {
    screen_->Leave();
  }
  LetAct(SIGTSTP);
  sigset_t pending;
  ::sigpending(&pending);
  if (::sigismember(&pending, SIGCONT) == 0) {
    OnSignal(SIGCONT);
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
    if (events_ != nullptr) {
      events_->Again();
    }
  }
  Draw();
  timer_ = loop_.At(MonoNow() + kTick, [this] { Tick(); });
}

void TopSession::Refresh(MonoTime now) {
  snapshot_.trouble = link_.Trouble(now);
  if (link_.is_over()) {
    return;
  }
  top::AddAge((now - aged_to_).count(), &snapshot_.status);
  aged_to_ = now;
  snapshot_.sight = {link_.Since(now).count(), world_.RunningFor(now).count()};
  snapshot_.steps_per_second = rate_.PerSecond(now);
}

void TopSession::Draw() {
  if (screen_ == nullptr) {
    return;
  }
  Refresh(MonoNow());
  const top::Frame frame = top::MakeFrame(snapshot_, view_, screen_->size());
  view_ = frame.view;
  page_ = view_.shows_help || frame.page == 0 ? page_ : frame.page;
  is_outdated_ = !screen_->Draw(frame);
  AwaitTerminal(screen_->has_unwritten());
}

void TopSession::AwaitTerminal(bool awaits) {
  if (awaits && !awaits_terminal_) {
    loop_.Watch(screen_->fd(), EPOLLOUT, [this](uint32_t events) { OnWritable(events); });
  } else if (!awaits && awaits_terminal_) {
    loop_.Unwatch(screen_->fd());
  }
  awaits_terminal_ = awaits;
}

void TopSession::OnWritable(uint32_t events) {
  if ((events & (EPOLLHUP | EPOLLERR)) != 0) {
    Quit(absl::OkStatus());
    return;
  }
  screen_->Flush();
  AwaitTerminal(screen_->has_unwritten());
  if (!awaits_terminal_ && is_outdated_) {
    Draw();
  }
}

}  // namespace fsdprun
