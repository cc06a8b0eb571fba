#include "launcher/run/health_port.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/error_text.h"

namespace fsdprun {
namespace {

double Seconds(Duration duration) { return std::chrono::duration<double>(duration).count(); }

std::string Answer(absl::string_view status, absl::string_view type, absl::string_view body) {
  return absl::StrCat("HTTP/1.0 ", status, "\r\nContent-Type: ", type,
                      "\r\nContent-Length: ", body.size(),
                      "\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n", body);
}

std::string PlainAnswer(absl::string_view status, absl::string_view line) {
  return Answer(status, "text/plain", absl::StrCat(line, "\n"));
}

std::string StatusAnswer(const HealthReport& report) {
  nlohmann::ordered_json json = {{"phase", report.phase},
                                 {"healthy", report.problem.empty()},
                                 {"problem", report.problem},
                                 {"notice", report.notice},
                                 {"generation", report.generation},
                                 {"restarts", report.restarts},
                                 {"has_progress", report.has_progress},
                                 {"progress_age_s", nullptr}};
  if (report.progress_age.has_value()) {
    json["progress_age_s"] = Seconds(*report.progress_age);
  }
  return Answer(
      "200 OK", "application/json",
      json.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace) +
          "\n");
}

std::string HealthAnswer(absl::string_view query, const HealthReport& report) {
  if (!report.problem.empty()) {
    return PlainAnswer("503 Service Unavailable", report.problem);
  }
  for (absl::string_view parameter : absl::StrSplit(query, '&', absl::SkipEmpty())) {
    double limit_s = 0;
    if (!absl::ConsumePrefix(&parameter, "max_progress_age=") ||
        !absl::SimpleAtod(parameter, &limit_s) || !(limit_s >= 0)) {
      return PlainAnswer("400 Bad Request",
                         "the only parameter is max_progress_age=SECONDS, 0 or more");
    }
    if (report.phase == "running" && report.progress_age.has_value() &&
        Seconds(*report.progress_age) > limit_s) {
      return PlainAnswer("503 Service Unavailable",
                         absl::StrCat("no progress for ", Seconds(*report.progress_age), " s"));
    }
  }
  return PlainAnswer("200 OK", report.phase);
}

absl::Status CannotListen(uint16_t port, int error) {
  const std::string text = absl::StrCat("cannot listen on port ", port,
                                        " of TORCHELASTIC_HEALTH_CHECK_PORT: ", ErrorText(error),
                                        "; choose another port, or unset it");
  return error == EADDRINUSE ? absl::AlreadyExistsError(text) : absl::InternalError(text);
}

/// All addresses of both families where there is IPv6, else those of IPv4. Returns an errno.
int Listen(uint16_t port, UniqueFd* listener) {
  const int on = 1, off = 0;
  for (const int family : {AF_INET6, AF_INET}) {
    listener->reset(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    ::setsockopt(listener->get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    sockaddr_in6 any6{};
    any6.sin6_family = AF_INET6;
    any6.sin6_port = htons(port);
    sockaddr_in any4{};
    any4.sin_family = AF_INET;
    any4.sin_port = htons(port);
    const bool is_v6 = family == AF_INET6;
    if (is_v6) {
      ::setsockopt(listener->get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof(off));
    }
    const auto* address =
        is_v6 ? reinterpret_cast<const sockaddr*>(&any6) : reinterpret_cast<const sockaddr*>(&any4);
    if (::bind(listener->get(), address, is_v6 ? sizeof(any6) : sizeof(any4)) == 0 &&
        ::listen(listener->get(), SOMAXCONN) == 0) {
      return 0;
    }
    if (errno == EADDRINUSE) {
      return errno;
    }
  }
  return errno;
}

int BoundPort(int socket) {
  sockaddr_in6 address{};
  socklen_t size = sizeof(address);
  ::getsockname(socket, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.sin6_port);  // At the same place in both families.
}

}  // namespace

std::string AnswerProbe(absl::string_view request, const HealthReport& report,
                        const std::function<std::string()>& metrics) {
  const std::vector<absl::string_view> words =
      absl::StrSplit(request.substr(0, request.find("\r\n")), ' ');
  if (words.size() != 3 || !absl::StartsWith(words[2], "HTTP/1.")) {
    return PlainAnswer("400 Bad Request", "this is a port for HTTP probes");
  }
  if (words[0] != "GET" && words[0] != "HEAD") {
    return PlainAnswer("405 Method Not Allowed", "GET and HEAD only");
  }
  const size_t mark = std::min(words[1].find('?'), words[1].size());
  const absl::string_view path = words[1].substr(0, mark);
  const absl::string_view query = absl::StripPrefix(words[1].substr(mark), "?");
  std::string answer;
  if (path == "/healthz") {
    answer = HealthAnswer(query, report);
  } else if (path == "/status") {
    answer = StatusAnswer(report);
  } else if (path == "/metrics" && metrics) {
    answer = Answer("200 OK", "text/plain; version=0.0.4; charset=utf-8", metrics());
  } else {
    answer = PlainAnswer("404 Not Found", "there are /healthz, /status and /metrics");
  }
  return words[0] == "HEAD" ? answer.substr(0, answer.find("\r\n\r\n") + 4) : answer;
}

absl::StatusOr<std::unique_ptr<HealthPort>> HealthPort::Open(EventLoop& loop, uint16_t port,
                                                             HealthSources sources) {
  UniqueFd listener;
  if (const int error = Listen(port, &listener); error != 0) {
    return CannotListen(port, error);
  }
  const int bound = BoundPort(listener.get());
  return std::unique_ptr<HealthPort>(
      new HealthPort(loop, std::move(listener), bound, std::move(sources)));
}

HealthPort::HealthPort(EventLoop& loop, UniqueFd listener, int port, HealthSources sources)
    : loop_(loop), listener_(std::move(listener)), port_(port), sources_(std::move(sources)) {
  reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  loop_.Watch(listener_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

HealthPort::~HealthPort() {
  loop_.Unwatch(listener_.get());
  while (!clients_.empty()) {
    Close(clients_.front().socket.get());
  }
}

void HealthPort::Accept() {
  UniqueFd socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!socket.valid()) {
    if (errno == EMFILE || errno == ENFILE) {
      // The loop would spin on the pending client: it is accepted with the reserved descriptor, and
      // closed.
      reserve_.reset();
      socket.reset(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      socket.reset();
      reserve_.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    return;
  }
  if (clients_.size() == kMaxClients) {
    Close(clients_.front().socket.get());
  }
  const int fd = socket.get();
  const EventLoop::TimerId limit = loop_.At(MonoNow() + kClientLimit, [this, fd] { Close(fd); });
  clients_.push_back({.socket = std::move(socket), .limit = limit});
  loop_.Watch(fd, EPOLLIN, [this, fd](uint32_t) {
    if (ClientOf(fd).answer.empty()) {
      Receive(fd);
    } else {
      Send(fd);
    }
  });
}

std::string HealthPort::Metrics() {
  const MonoTime begin = MonoNow();
  if (begin >= metrics_until_) {
    metrics_ = sources_.metrics();
    const MonoTime end = MonoNow();
    metrics_until_ = end + std::min<Duration>(kMetricsPause * (end - begin), kOldestMetrics);
  }
  return metrics_;
}

HealthPort::Client& HealthPort::ClientOf(int socket) {
  return *std::find_if(clients_.begin(), clients_.end(),
                       [socket](const Client& c) { return c.socket.get() == socket; });
}

void HealthPort::Receive(int socket) {
  Client& client = ClientOf(socket);
  char bytes[kMaxRequestBytes];
  const ssize_t got = ::recv(socket, bytes, sizeof(bytes), 0);
  if (got <= 0) {
    if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      Close(socket);
    }
    return;
  }
  client.request.append(bytes, static_cast<size_t>(got));
  const bool is_complete = absl::StrContains(client.request, "\r\n\r\n");
  if (!is_complete && client.request.size() < kMaxRequestBytes) {
    return;
  }
  client.answer = is_complete
                      ? AnswerProbe(client.request, sources_.report(),
                                    sources_.metrics ? [this] { return Metrics(); }
                                                     : std::function<std::string()>())
                      : PlainAnswer("431 Request Header Fields Too Large", "at most 4096 bytes");
  Send(socket);
}

/// Most answers are smaller than any socket's buffer, and are sent at once.
void HealthPort::Send(int socket) {
  Client& client = ClientOf(socket);
  const std::string& answer = client.answer;
  const ssize_t sent = ::send(socket, answer.data() + client.sent, answer.size() - client.sent,
                              MSG_NOSIGNAL | MSG_DONTWAIT);
  client.sent += sent > 0 ? static_cast<size_t>(sent) : 0;
  const bool is_lost = sent < 0 && errno != EAGAIN && errno != EINTR;
  if (is_lost || client.sent == answer.size()) {
    Close(socket);
  } else {
    loop_.Rewatch(socket, EPOLLOUT);
  }
}

void HealthPort::Close(int socket) {
  const auto client = std::find_if(clients_.begin(), clients_.end(),
                                   [socket](const Client& c) { return c.socket.get() == socket; });
  loop_.Cancel(client->limit);
  loop_.Unwatch(socket);
  clients_.erase(client);
}

}  // namespace fsdprun
