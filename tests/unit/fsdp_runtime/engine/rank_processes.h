#pragma once

// Ranks that are processes, so that a test can kill them; on machines of their own, if it wants, as
// far as network and process ids go. Everything here forks, before the calling process has started
// a thread.

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace fsdp::testing {

/// Lines from several processes, each of which arrives in one piece.
class LinePipe {
 public:
  LinePipe() { TORCH_CHECK(::pipe2(ends_.data(), O_CLOEXEC) == 0, "pipe2: ", errno); }
  ~LinePipe() {
    ::close(ends_[0]);
    close_write();
  }
  LinePipe(const LinePipe&) = delete;
  LinePipe& operator=(const LinePipe&) = delete;

  void write(std::string line) const {
    std::replace(line.begin(), line.end(), '\n', ' ');
    line = line.substr(0, 1000) + "\n";
    (void)!::write(ends_[1], line.data(), line.size());
  }
  /// From here on only other processes write.
  void close_write() {
    if (ends_[1] >= 0) {
      ::close(std::exchange(ends_[1], -1));
    }
  }
  /// Nothing once all who can write have ended, or if none has written for `patience`.
  std::optional<std::string> read(std::chrono::milliseconds patience = std::chrono::hours(1)) {
    while (text_.find('\n') == std::string::npos) {
      pollfd entry{ends_[0], POLLIN, 0};
      const int ready = ::poll(&entry, 1, static_cast<int>(patience.count()));
      was_silent_ = ready == 0;
      std::array<char, 4096> piece{};
      const ssize_t n = ready == 1 ? ::read(ends_[0], piece.data(), piece.size()) : 0;
      if (n <= 0) {
        return std::nullopt;
      }
      text_.append(piece.data(), static_cast<size_t>(n));
    }
    const size_t end = text_.find('\n');
    std::string line = text_.substr(0, end);
    text_.erase(0, end + 1);
    return line;
  }
  /// Why the last read() has brought nothing: somebody could still have written.
  bool was_silent() const { return was_silent_; }

 private:
  std::array<int, 2> ends_{};
  std::string text_;  // read and not taken yet
  bool was_silent_ = false;
};

/// A child process that says what it has to say in lines. It ends with this process.
inline pid_t start_child(const LinePipe& lines, const std::function<void()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // none is left behind by a test that fails
    try {
      body();
    } catch (const std::exception& error) {
      lines.write(std::string("error ") + error.what());
    }
    ::_exit(0);
  }
  return child;
}

/// What `body` returns, which runs in a process of its own: it may start threads.
inline std::vector<std::string> lines_of_child(
    const std::function<std::vector<std::string>()>& body) {
  LinePipe lines;
  const pid_t child = start_child(lines, [&] {
    for (const std::string& line : body()) {
      lines.write(line);
    }
  });
  lines.close_write();
  std::vector<std::string> all;
  while (const std::optional<std::string> line = lines.read()) {
    all.push_back(*line);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (status != 0) {
    all.push_back("error the child ended with status " + std::to_string(status));
  }
  return all;
}

inline bool shell(const std::string& commands) { return ::system(commands.c_str()) == 0; }

/// The processes of a world. Each waits for a port before it does what it is for.
class RankProcesses {
 public:
  /// Where those that are apart reach this process.
  static constexpr char kHub[] = "10.99.0.254";
  static std::string address_of(int64_t rank) { return "10.99.0." + std::to_string(rank + 1); }
  using Body = std::function<void(int64_t rank, int port, const LinePipe& lines)>;

  /// Whether this machine lets ranks be apart.
  static bool can_be_apart() {
    const auto probe = [] { return std::vector<std::string>{make_hub() ? "yes" : "no"}; };
    return lines_of_child(probe) == std::vector<std::string>{"yes"};
  }

  /// `are_apart`: each has a network of its own, connected by a bridge, and is the first of its
  /// process ids. Throws if that cannot be had.
  RankProcesses(int64_t size, bool are_apart, const Body& body) : are_apart_(are_apart) {
    TORCH_CHECK(::pipe2(ports_.data(), O_CLOEXEC) == 0, "pipe2: ", errno);
    TORCH_CHECK(!are_apart || make_hub(), "no network namespaces: not root, or no iproute2");
    for (int64_t rank = 0; rank < size; ++rank) {
      processes_.push_back(start_child(lines_, [&] { be(rank, body); }));
    }
    lines_.close_write();
  }
  /// Ends those that are left.
  ~RankProcesses() {
    ::close(ports_[0]);
    ::close(ports_[1]);
    for (const pid_t process : processes_) {
      if (process > 0) {
        ::kill(process, SIGKILL);
        ::waitpid(process, nullptr, 0);
      }
    }
  }
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void begin(int port) {
    for (size_t rank = 0; are_apart_ && rank < processes_.size(); ++rank) {
      TORCH_CHECK(lines_.read() == "apart", "a rank has no network of its own");
    }
    for (size_t rank = 0; are_apart_ && rank < processes_.size(); ++rank) {
      TORCH_CHECK(connect_to_hub(rank, processes_[rank]), "rank ", rank, " has no wire");
    }
    const std::vector<int> ports(processes_.size(), port);
    const auto bytes = static_cast<ssize_t>(ports.size() * sizeof(int));
    TORCH_CHECK(::write(ports_[1], ports.data(), static_cast<size_t>(bytes)) == bytes, "write");
  }
  void kill(int64_t rank) { ::kill(processes_[static_cast<size_t>(rank)], SIGKILL); }
  /// What has become of each: how it ended, or what its threads wait for. Once, at the end.
  std::vector<std::string> states() {
    std::vector<std::string> states;
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      int status = 0;
      const bool has_ended = ::waitpid(processes_[rank], &status, WNOHANG) != 0;
      states.push_back("rank " + std::to_string(rank) +
                       (!has_ended ? " runs:" + threads_of(processes_[rank])
                        : WIFSIGNALED(status)
                            ? " was ended by signal " + std::to_string(WTERMSIG(status))
                            : " exited with " + std::to_string(WEXITSTATUS(status))));
      processes_[rank] = has_ended ? 0 : processes_[rank];
    }
    return states;
  }
  bool was_silent() const { return lines_.was_silent(); }
  /// See LinePipe.
  std::optional<std::string> read(std::chrono::milliseconds patience = std::chrono::hours(1)) {
    return lines_.read(patience);
  }

 private:
  static std::string threads_of(pid_t process) {
    std::string all;
    std::error_code error;
    const std::filesystem::path folder = "/proc/" + std::to_string(process) + "/task";
    for (const auto& thread : std::filesystem::directory_iterator(folder, error)) {
      const auto line = [&](const char* name) {
        std::ifstream file(thread.path() / name);
        std::string text;
        std::getline(file, text);
        return text;
      };
      all += " " + line("comm") + "(" + line("wchan") + " " + line("syscall").substr(0, 4) + ")";
    }
    return all;
  }
  void be(int64_t rank, const Body& body) {
    ::close(ports_[1]);  // so that nobody waits for a port that does not come
    if (are_apart_) {
      TORCH_CHECK(::unshare(CLONE_NEWNET) == 0, "no network of its own");
      lines_.write("apart");
    }
    int port = 0;
    TORCH_CHECK(::read(ports_[0], &port, sizeof(port)) == sizeof(port), "no port");
    if (are_apart_) {
      be_process_one(rank);
    }
    body(rank, port, lines_);
  }

  /// With an address of its own: without one a bridge has that of a port, and another when the port
  /// goes with its rank, which the others would not know for most of a minute.
  static bool make_hub() {
    return ::unshare(CLONE_NEWNET) == 0 &&
           shell(
               "ip link set lo up && ip link add hub address 02:00:00:00:00:01 type bridge && "
               "ip addr add " +
               std::string(kHub) + "/24 dev hub && ip link set hub up");
  }
  static bool connect_to_hub(size_t rank, pid_t process) {
    const std::string port = "port" + std::to_string(rank);
    return shell("ip link add " + port + " type veth peer name wire netns " +
                 std::to_string(process) + " && ip link set " + port + " master hub up");
  }
  /// Goes on as the first process of a new set of process ids, which dies with this one.
  static void be_process_one(int64_t rank) {
    TORCH_CHECK(shell("ip link set lo up && ip addr add " + address_of(rank) +
                      "/24 dev wire && ip link set wire up"),
                "no network");
    TORCH_CHECK(::unshare(CLONE_NEWPID) == 0, "no process ids");
    const pid_t inner = ::fork();
    if (inner != 0) {
      ::waitpid(inner, nullptr, 0);
      ::_exit(0);
    }
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  }

  const bool are_apart_;
  std::array<int, 2> ports_{};
  LinePipe lines_;
  std::vector<pid_t> processes_;
};

}  // namespace fsdp::testing
