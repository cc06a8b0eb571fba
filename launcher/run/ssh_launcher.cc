#include "launcher/run/ssh_launcher.h"

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "launcher/ssh/node_hello.h"
#include "launcher/ssh/ssh_advice.h"
#include "launcher/ssh/ssh_command.h"

namespace fsdprun {
namespace {

/// How many hosts are being logged in to at a time.
constexpr size_t kLogins = 64;
constexpr size_t kHostsNamed = 8;
/// How often a login is tried that sshd has turned away, and before the first, second, ... repeat.
constexpr int kMostLogins = 6;
constexpr Duration kLoginPause = std::chrono::milliseconds(500);
/// Parts of the pause by which the hosts differ, so that they do not come at once again.
constexpr int kLoginSpread = 8;
/// How long an ssh that was hung up on may take beyond --abort-timeout.
constexpr Duration kSshHangUpMargin = std::chrono::seconds(5);

}  // namespace

SshLauncher::SshLauncher(const LaunchPlan& plan, const Environment& environment,
                         std::vector<std::string> arguments)
    : plan_(plan),
      environment_(environment),
      arguments_(std::move(arguments)),
      job_(plan, environment, *this) {}

SshLauncher::~SshLauncher() = default;

// --- The begin

absl::StatusOr<std::string> SshLauncher::Prepare() {
  program_ = plan_.ssh->program;
  if (program_.empty()) {
    std::error_code error;
    program_ = std::filesystem::read_symlink("/proc/self/exe", error).string();
    if (error) {
      return absl::InternalError(absl::StrCat("cannot find the path of this program (",
                                              error.message(), "); give it with --ssh-program"));
    }
  }
  for (size_t i = 0; i < job_.nodes().size(); ++i) {
    parts_.push_back({.index = i});
  }
  return "";
}

void SshLauncher::StartAll() {
  job_.loop().Post([this] { StartNext(); });
}

void SshLauncher::StartNext() {
  const auto is_logging_in = [](const Part& part) {
    return part.is_pausing || (part.is_connected() && !part.has_said_hello());
  };
  while (next_ < parts_.size() && !job_.is_decided() &&
         std::count_if(parts_.begin(), parts_.end(), is_logging_in) < std::ptrdiff_t{kLogins}) {
    StartPart(parts_[next_++]);
  }
}

void SshLauncher::StartPart(Part& part) {
  ++part.logins;
  Console& console = job_.output().console();
  SshConnection::Hooks hooks;
  hooks.on_hello = [this, &part](const BuildInfo& build) { OnHello(part, build); };
  hooks.on_lines = [&console](ConsoleStream stream, absl::string_view lines) {
    console.WriteLines(stream, lines);
  };
  hooks.has_room = [&console](ConsoleStream stream) { return console.HasRoom(stream); };
  hooks.on_end = [this, &part](int code) { OnEnd(part, code); };
  hooks.on_failure = [this, &part](const absl::Status& why) {
    job_.OnGone(part.index, std::string(why.message()));
    StartNext();
  };
  part.connection = std::make_unique<SshConnection>(job_.loop(), std::move(hooks));
  part.connection->Start(SshCommand(*plan_.ssh, NodeOf(part).host.daemon, program_),
                         SshEnvironment(environment_));
}

void SshLauncher::OnHello(const Part& part, const BuildInfo& build) {
  if (const std::string mismatch = Mismatch(build, BuildInfo()); !mismatch.empty()) {
    part.connection->Kill();
    job_.OnGone(part.index,
                absl::StrCat(mismatch, ", or give the path of this one with --ssh-program"));
  } else if (job_.is_over()) {
    Release(part.index);
  } else {
    v1::SessionSpec order = job_.OrderFor(part.index, arguments_);
    order.set_token(job_.head().place().token.value);
    part.connection->Send(FramedOrder(order.SerializeAsString()));
  }
  StartNext();
}

// --- While the job runs

void SshLauncher::Resume() {
  for (const Part& part : parts_) {
    if (part.connection != nullptr) {
      part.connection->Resume();
    }
  }
}

void SshLauncher::OnEnd(Part& part, int code) {
  const SshConnection& connection = *part.connection;
  const SshEnd end{NodeOf(part).host.daemon, code, connection.last_words(), program_};
  if (!connection.has_said_hello() && IsTurnedAway(end) && part.logins < kMostLogins &&
      !job_.is_decided()) {
    LogInAgain(part);
  } else if (!connection.has_said_hello()) {
    job_.OnGone(part.index, DescribeSshEnd(end));
  } else {
    const std::string last = code == 0 ? "" : LastLines(connection.last_words());
    job_.OnGone(part.index, absl::StrCat("its part of the job has ended with code ", code,
                                         last.empty() ? "" : absl::StrCat(": ", last)));
  }
  StartNext();
}

// sshd, or one on the way, has more logins at a time than it takes (MaxStartups).
void SshLauncher::LogInAgain(Part& part) {
  const auto place = static_cast<int>(part.index) % kLoginSpread;
  const Duration pause = kLoginPause * (1 << (part.logins - 1));
  part.is_pausing = true;  // It keeps its place among those that log in.
  job_.loop().At(MonoNow() + pause + pause * place / kLoginSpread, [this, &part] {
    part.is_pausing = false;
    if (!job_.is_decided()) {
      StartPart(part);
    }
  });
}

std::string SshLauncher::WaitDetails() const {
  std::vector<std::string> silent;
  size_t others = 0;
  bool is_starting = false;
  for (const Part& part : parts_) {
    if (NodeOf(part).gone.empty() && !part.has_said_hello()) {
      silent.size() < kHostsNamed ? silent.push_back(NodeOf(part).name) : void(++others);
    }
    is_starting = is_starting || (part.is_connected() && part.connection->is_starting());
  }
  if (silent.empty()) {
    return "";
  }
  return absl::StrCat("; ssh has not got to ", absl::StrJoin(silent, ", "),
                      others > 0 ? absl::StrCat(" and ", others, " more") : "",
                      is_starting ? ", nor begun here: see which folder on PATH, or file system "
                                    "of ssh, does not answer"
                                  : "");
}

// --- The end

void SshLauncher::OnOutcome() {
  job_.loop().At(MonoNow() + RemoteJob::kLostPartTimeout, [this] { HangUpOnLost(); });
}

// ssh notices later that a machine is gone. If it is not gone, its part ends when it is hung up on,
// and says its last.
void SshLauncher::HangUpOnLost() {
  for (const Part& part : parts_) {
    if (NodeOf(part).is_lost) {
      part.connection->HangUp();
    }
  }
  job_.loop().At(MonoNow() + plan_.abort_timeout + kSshHangUpMargin, [this] { CloseLost(); });
}

void SshLauncher::CloseLost() {
  for (const Part& part : parts_) {
    const RemoteJob::Node& node = NodeOf(part);
    if (node.is_lost && part.is_connected()) {
      job_.output().Print(absl::StrCat("node ", node.name, ": ssh to ", ToString(node.host.daemon),
                                       " has not ended; its output ends here"));
      part.connection->Kill();
    }
  }
  job_.StopIfAllAreOver();
}

// A login has told the host nothing yet.
void SshLauncher::Release(size_t node) {
  const Part& part = parts_[node];
  if (part.is_connected()) {
    part.has_said_hello() ? part.connection->HangUp() : part.connection->Kill();
  }
}

void SshLauncher::ReleaseAll() {
  for (size_t i = 0; i < parts_.size(); ++i) {
    Release(i);
  }
  job_.loop().Cancel(kill_timer_);
  kill_timer_ =
      job_.loop().At(MonoNow() + plan_.abort_timeout + kSshHangUpMargin, [this] { KillAll(); });
  job_.StopIfAllAreOver();
}

// The nodes' parts end all the same, as soon as sshd tells them, or the coordinator is gone.
void SshLauncher::KillAll() {
  for (const Part& part : parts_) {
    if (part.connection != nullptr) {
      part.connection->Kill();
    }
  }
  job_.StopIfAllAreOver();
}

}  // namespace fsdprun
