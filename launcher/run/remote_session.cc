#include "launcher/run/remote_session.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "launcher/daemon/after_loss.h"

namespace fsdprun {
namespace {

constexpr Duration kRedialPause = std::chrono::milliseconds(300);
/// Less than the daemon's window.
constexpr uint64_t kAcknowledgeBytes = 64u << 10;

ConsoleStream StreamOf(size_t index) {
  return index == 0 ? ConsoleStream::kOut : ConsoleStream::kError;
}

}  // namespace

RemoteSession::RemoteSession(EventLoop& loop, DaemonCall::Options daemon,
                             std::vector<std::string> targets, Kind kind, v1::SessionSpec spec,
                             Hooks hooks)
    : loop_(loop),
      daemon_(std::move(daemon)),
      targets_(std::move(targets)),
      kind_(kind),
      spec_(std::move(spec)),
      hooks_(std::move(hooks)) {}

RemoteSession::~RemoteSession() { loop_.Cancel(redial_timer_); }

void RemoteSession::Start() {
  waiting_since_ = MonoNow();
  Dial();
}

void RemoteSession::Dial() {
  redial_timer_ = 0;
  DaemonCall::Options options = daemon_;
  options.target = targets_[dials_++ % targets_.size()];
  call_ = std::make_unique<DaemonCall>(
      loop_, std::move(options),
      DaemonCall::Hooks{[this](const v1::DaemonMessage& message) { OnMessage(message); },
                        [this](const absl::Status& why) { OnCallEnd(why); }});
  v1::DaemonOrder order;
  if (state_ == State::kDialing && kind_ == Kind::kRun) {
    *order.mutable_run()->mutable_session() = spec_;
  } else {
    order.mutable_follow()->set_id(spec_.id());
    order.mutable_follow()->set_stdout_shown(streams_[0].received);
    order.mutable_follow()->set_stderr_shown(streams_[1].received);
  }
  call_->Open(order);
}

void RemoteSession::OnMessage(const v1::DaemonMessage& message) {
  if (state_ == State::kOver) {
    return;
  }
  if (message.has_accepted()) {
    state_ = State::kRunning;
    is_answered_ = true;
    has_told_trouble_ = false;
    if (is_released_) {
      SayDone();
      hooks_.on_released();
    }
  } else if (message.has_output() && state_ == State::kRunning) {
    OnOutput(message.output());
  } else if (message.has_started() && state_ == State::kRunning && hooks_.on_started) {
    hooks_.on_started();
  } else if (message.has_ended() && state_ == State::kRunning) {
    code_ = message.ended().code();
    EndIfAllShown();
  }
}

// After a broken call the same may come again.
void RemoteSession::OnOutput(const v1::Output& output) {
  Stream& stream = streams_[output.is_error() ? 1 : 0];
  const uint64_t end = output.offset() + output.data().size();
  if (end <= stream.received) {
    return;
  }
  if (output.offset() > stream.received) {
    hooks_.on_lines(ConsoleStream::kError,
                    absl::StrCat("fsdprun: ", output.offset() - stream.received,
                                 " bytes of earlier output are not kept any more\n"));
    stream.received = output.offset();
  }
  stream.pending.append(output.data(), stream.received - output.offset());
  stream.received = end;
  Show();
}

void RemoteSession::Resume() {
  if (state_ == State::kRunning) {
    Show();
  }
}

void RemoteSession::Show() {
  ShowStream(0);
  ShowStream(1);
  Acknowledge();
  EndIfAllShown();
}

void RemoteSession::ShowStream(size_t index) {
  Stream& stream = streams_[index];
  if (stream.pending.empty() || !hooks_.has_room(StreamOf(index))) {
    return;
  }
  const std::string lines = stream.lines.Take(std::exchange(stream.pending, ""));
  if (!lines.empty()) {
    hooks_.on_lines(StreamOf(index), lines);
  }
}

void RemoteSession::Acknowledge() {
  const bool is_due = std::any_of(streams_.begin(), streams_.end(), [](const Stream& stream) {
    return stream.shown() - stream.acknowledged >= kAcknowledgeBytes;
  });
  if (!is_due) {
    return;
  }
  v1::LauncherMessage message;
  message.mutable_shown()->set_stdout_shown(streams_[0].acknowledged = streams_[0].shown());
  message.mutable_shown()->set_stderr_shown(streams_[1].acknowledged = streams_[1].shown());
  call_->Send(message);
}

void RemoteSession::EndIfAllShown() {
  const bool is_all = streams_[0].pending.empty() && streams_[1].pending.empty();
  if (!code_.has_value() || !is_all || state_ == State::kOver) {
    return;
  }
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (const std::string rest = streams_[i].lines.TakeRest(); !rest.empty()) {
      hooks_.on_lines(StreamOf(i), rest);
    }
  }
  SayDone();
  hooks_.on_end(*code_);
}

void RemoteSession::SayDone() {
  state_ = State::kOver;
  v1::LauncherMessage message;
  message.mutable_done();
  call_->Send(message);
  call_->Close();
}

// A daemon that is being asked may have started it before its answer comes.
void RemoteSession::Release() {
  if (state_ == State::kOver || std::exchange(is_released_, true)) {
    return;
  }
  const bool is_calling = call_ != nullptr && redial_timer_ == 0;
  if (state_ == State::kRunning && is_calling) {
    SayDone();
    hooks_.on_released();
  } else if (!is_calling) {
    loop_.Cancel(std::exchange(redial_timer_, 0));
    state_ = State::kOver;
    hooks_.on_released();
  }
}

void RemoteSession::Leave() {
  if (std::exchange(state_, State::kOver) != State::kOver) {
    loop_.Cancel(std::exchange(redial_timer_, 0));
    if (call_ != nullptr) {
      call_->Close();
    }
  }
}

bool RemoteSession::Signal(int signal) {
  if (state_ != State::kRunning || !is_answered_) {
    return false;
  }
  v1::LauncherMessage message;
  message.mutable_signal()->set_signal(signal);
  call_->Send(message);
  return true;
}

void RemoteSession::OnCallEnd(const absl::Status& why) {
  is_answered_ = false;
  if (state_ == State::kOver) {
    return;
  }
  if (is_released_) {
    state_ = State::kOver;
    hooks_.on_released();
    return;
  }
  const bool was_running = state_ == State::kRunning;
  const bool has_more_addresses = dials_ < targets_.size();
  if (AfterLossOf(why, was_running, has_more_addresses, MonoNow() - waiting_since_) ==
      AfterLoss::kRedial) {
    if (was_running && !std::exchange(has_told_trouble_, true)) {
      hooks_.on_trouble(why);
    }
    redial_timer_ = loop_.At(MonoNow() + kRedialPause, [this] { Dial(); });
    return;
  }
  state_ = State::kOver;
  was_running ? hooks_.on_lost(why) : hooks_.on_refused(why);
}

}  // namespace fsdprun
