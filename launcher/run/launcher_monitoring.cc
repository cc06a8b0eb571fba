// What others learn of a launcher while it runs.
#include <memory>
#include <optional>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status_macros.h"
#include "launcher/cli/worker_command.h"
#include "launcher/directory/host_lookup.h"
#include "launcher/run/job_spec.h"
#include "launcher/run/launcher.h"
#include "launcher/run/notices.h"

namespace fsdprun {
absl::Status Launcher::OpenMonitoring() {
  const auto report = [this] {
    // Who hosts the coordinator is needed by the other nodes, whatever has become of its own.
    const bool has_ended = agent_exit_.has_value() && host_ == nullptr && !search_.needs_place();
    return DescribeHealth(agent_.get(), has_ended ? std::optional(agent_message_) : std::nullopt,
                          progress_signs_);
  };
  health_port_ = OpenHealthPort(loop_, environment_, {report, [this] { return Metrics(); }});
  // A part of a daemon's job may find one.
  return plan_.keeper_socket.empty() ? OpenTimer("") : absl::OkStatus();
}

std::string Launcher::Metrics() {
  MetricPage page({{"run_id", run_id_}, {"node", NodeName()}});
  CollectOwnProcess(&page);
  node_monitor_.Collect(agent_.get(), &page);
  if (host_ != nullptr) {
    host_->Collect(&page);
  }
  return page.Text();
}

// Workers that are there already write to `left_behind`.
absl::Status Launcher::OpenTimer(const std::string& left_behind) {
  if (!left_behind.empty()) {
    absl::StatusOr<std::unique_ptr<FileTimer>> timer = FileTimer::Adopt(loop_, left_behind);
    if (timer.ok()) {
      file_timer_ = *std::move(timer);
      return absl::OkStatus();
    }
    Log(LogLevel::kWarning,
        absl::StrCat(timer.status().message(), "; workers that set a timer fail"));
  }
  ASSIGN_OR_RETURN(file_timer_, OpenFileTimer(loop_, environment_));
  return absl::OkStatus();
}

/// What happens is kept where the user keeps logs.
void Launcher::OpenEventLog() {
  event_log_->Open(plan_.log_dir.empty() ? "" : output_.dirs().logs);
}

void Launcher::RecordNews(CoordinatorHost::Hooks* hooks) {
  hooks->on_news = [this](const job::News& news) {
    event_log_->Record(news, host_->history().ledger());
  };
  RecordFindings(*event_log_, hooks);
}

void Launcher::WatchAgent(LocalAgent::Hooks* hooks) {
  progress_signs_ = ProgressSigns();
  hooks->on_news = [this](const node::News& news) {
    event_log_->Record(news);
    node_monitor_.On(news);
    if (std::holds_alternative<node::CoordinatorLost>(news)) {
      StepSearch(place::CoordinatorLost{});
    }
  };
  hooks->on_timer_request = [this] { progress_signs_.OnTimerRequest(); };
  hooks->on_event = [this](const node::Event& event) {
    progress_signs_.On(event);
    node_monitor_.On(event);
    WarnOfOtherTerms(event);
    TellIfLeftOut(event);
    NoteRejection(event);
    if (events_ != nullptr) {
      events_->On(event);
    }
  };
  if (!ShowsEvents(plan_, environment_)) {
    return;
  }
  const std::string program = WorkerCommand(plan_, python_, 0).front();
  events_ = std::make_unique<AgentEvents>(
      EventContext{.run_id = run_id_,
                   .role = plan_.role,
                   .hostname = HostName(),
                   .rdzv_backend = BackendName(plan_.backend),
                   .entry_point = program.substr(program.rfind('/') + 1)},
      [this](const std::string& line) {
        output_.console().WriteLines(ConsoleStream::kError, line);
      });
  hooks->on_action = [this](const node::Action& action) {
    if (events_ != nullptr) {
      events_->On(action);
    }
  };
  hooks->on_timer_expired = [this](const ExpiredTimer& timer) {
    if (events_ != nullptr) {
      events_->OnTimer(timer);
    }
  };
}

// By the coordinator; not because another program answers, or one of another run id.
void Launcher::NoteRejection(const node::Event& event) {
  const auto* order = std::get_if<ToAgent>(&event);
  const auto* reject = order == nullptr ? nullptr : std::get_if<RejectAgent>(&order->message);
  if (reject != nullptr && !reject->rejoin) {
    was_turned_away_ = agent_->last_link_error().ok();
  }
}

/// An fsdp-agent has no such options. Every stream begins with an admission: nothing is told twice.
void Launcher::WarnOfOtherTerms(const node::Event& event) {
  const auto* order = std::get_if<ToAgent>(&event);
  const auto* admit = order == nullptr ? nullptr : std::get_if<AdmitAgent>(&order->message);
  if (admit == nullptr || plan_.is_agent) {
    return;
  }
  std::string text =
      DescribeOtherTerms(AdmissionOf(MakeJobSpec(plan_, clocks_)), *admit, place_.where());
  if (!text.empty() && text != warned_terms_) {
    Log(LogLevel::kWarning, text);
    warned_terms_ = std::move(text);
  }
}

/// The launcher that hosts the coordinator says so of all nodes.
void Launcher::TellIfLeftOut(const node::Event& event) {
  const auto* order = std::get_if<ToAgent>(&event);
  const auto* left_out = order == nullptr ? nullptr : std::get_if<LeftOut>(&order->message);
  if (left_out == nullptr || host_ != nullptr || plan_.shares_console ||
      left_out->why == told_left_out_) {
    return;
  }
  told_left_out_ = left_out->why;
  Log(LogLevel::kWarning, DescribeLeftOut(left_out->why));
}

}  // namespace fsdprun
