#include "launcher/run/health_port.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <thread>

#include "absl/strings/match.h"
#include "tests/unit/base/loop_waiter.h"

namespace fsdprun {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string Ask(const std::string& target, const HealthReport& report,
                const std::string& method = "GET") {
  return AnswerProbe(method + " " + target + " HTTP/1.1\r\nHost: x\r\n\r\n", report);
}

std::string BodyOf(const std::string& answer) { return answer.substr(answer.find("\r\n\r\n") + 4); }

TEST(AnswerProbeTest, BadRequestsAreToldSo) {
  EXPECT_THAT(AnswerProbe("hello\r\n\r\n", {}), StartsWith("HTTP/1.0 400 "));
  EXPECT_THAT(Ask("/", {}), StartsWith("HTTP/1.0 404 "));
  EXPECT_THAT(Ask("/healthzz", {}), StartsWith("HTTP/1.0 404 "));
  EXPECT_THAT(Ask("/healthz", {}, "POST"), StartsWith("HTTP/1.0 405 "));
  for (const char* query : {"max_progress_age=", "max_progress_age=x", "max_progress_age=-1",
                            "max_progress_age=nan", "age=1"}) {
    EXPECT_THAT(Ask(std::string("/healthz?") + query, {}), StartsWith("HTTP/1.0 400 ")) << query;
  }
}

TEST(AnswerProbeTest, HealthIsWhatTheProblemSays) {
  HealthReport report;
  const std::string good = Ask("/healthz", report);
  EXPECT_THAT(good, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_EQ(BodyOf(good), "rendezvous\n");
  EXPECT_EQ(BodyOf(Ask("/healthz", report, "HEAD")), "");
  report.problem = "the coordinator does not answer";
  const std::string bad = Ask("/healthz", report);
  EXPECT_THAT(bad, StartsWith("HTTP/1.0 503 "));
  EXPECT_EQ(BodyOf(bad), "the coordinator does not answer\n");
}

TEST(AnswerProbeTest, MetricsAreInPrometheusFormat) {
  const std::string request = "GET /metrics HTTP/1.1\r\nAccept: */*\r\n\r\n";
  const std::string answer = AnswerProbe(request, {}, [] { return "fsdprun_step 7\n"; });
  EXPECT_THAT(answer, StartsWith("HTTP/1.0 200 OK\r\n"));
  EXPECT_THAT(answer, HasSubstr("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"));
  EXPECT_EQ(BodyOf(answer), "fsdprun_step 7\n");
  EXPECT_THAT(AnswerProbe(request, {}), StartsWith("HTTP/1.0 404 ")) << "there are none";
}

TEST(AnswerProbeTest, ProgressThatIsTooOldIsAProblemForWhoAsks) {
  HealthReport report{.phase = "running", .progress_age = std::chrono::seconds(20)};
  EXPECT_THAT(Ask("/healthz", report), StartsWith("HTTP/1.0 200 "));
  EXPECT_THAT(Ask("/healthz?max_progress_age=20", report), StartsWith("HTTP/1.0 200 "));
  const std::string late = Ask("/healthz?max_progress_age=19.5", report);
  EXPECT_THAT(late, StartsWith("HTTP/1.0 503 "));
  EXPECT_EQ(BodyOf(late), "no progress for 20 s\n");
  report.phase = "rendezvous";
  EXPECT_THAT(Ask("/healthz?max_progress_age=0", report), StartsWith("HTTP/1.0 200 "));
}

TEST(AnswerProbeTest, StatusIsTheReportAsJson) {
  HealthReport report{.phase = "running", .problem = "x\xff", .generation = 3, .restarts = 2};
  const std::string answer = Ask("/status", report);
  EXPECT_THAT(answer, StartsWith("HTTP/1.0 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/json\r\n"));
  nlohmann::json json = nlohmann::json::parse(BodyOf(answer));
  EXPECT_EQ(json["phase"], "running");
  EXPECT_EQ(json["healthy"], false);
  EXPECT_EQ(json["generation"], 3);
  EXPECT_EQ(json["restarts"], 2);
  EXPECT_TRUE(json["progress_age_s"].is_null());
  report.progress_age = std::chrono::milliseconds(1500);
  json = nlohmann::json::parse(BodyOf(Ask("/status", report)));
  EXPECT_EQ(json["progress_age_s"], 1.5);
}

class HealthPortTest : public testing::Test {
 protected:
  HealthPortTest() {
    auto port = HealthPort::Open(loop_, 0,
                                 {[] { return HealthReport{}; },
                                  [this] {
                                    ++times_made_;
                                    std::this_thread::sleep_for(what_they_take_);
                                    return metrics_;
                                  }});
    EXPECT_TRUE(port.ok()) << port.status();
    port_ = *std::move(port);
  }

  UniqueFd Connect() const {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port_->port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    return socket;
  }
  static void Send(const UniqueFd& socket, const std::string& text) {
    EXPECT_EQ(::send(socket.get(), text.data(), text.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(text.size()));
  }
  /// Runs the loop until the port has closed the connection.
  std::string ReadAll(const UniqueFd& socket) {
    std::string text;
    bool is_over = false;
    loop_.Watch(socket.get(), EPOLLIN, [&](uint32_t) {
      char bytes[64 << 10];
      const ssize_t got = ::recv(socket.get(), bytes, sizeof(bytes), MSG_DONTWAIT);
      is_over = got <= 0;
      text.append(bytes, static_cast<size_t>(got > 0 ? got : 0));
      waiter_.Notice();
    });
    EXPECT_TRUE(waiter_.RunUntil([&] { return is_over; }));
    loop_.Unwatch(socket.get());
    return text;
  }

  std::string metrics_ = "fsdprun_step 1\n";
  int times_made_ = 0;
  std::chrono::milliseconds what_they_take_{0};
  EventLoop loop_;
  LoopWaiter waiter_{loop_};
  std::unique_ptr<HealthPort> port_;
};

TEST_F(HealthPortTest, APortInUseIsNamed) {
  const auto second = HealthPort::Open(loop_, static_cast<uint16_t>(port_->port()),
                                       {[] { return HealthReport{}; }});
  EXPECT_TRUE(absl::IsAlreadyExists(second.status()));
  EXPECT_THAT(std::string(second.status().message()),
              HasSubstr(std::to_string(port_->port()) + " of TORCHELASTIC_HEALTH_CHECK_PORT"));
}

TEST_F(HealthPortTest, ARequestMayComeInPieces) {
  const UniqueFd socket = Connect();
  Send(socket, "GET /heal");
  Send(socket, "thz HTTP/1.0\r\n\r\n");
  EXPECT_THAT(ReadAll(socket), StartsWith("HTTP/1.0 200 OK"));
}

TEST_F(HealthPortTest, RequestsWithoutEndAreRefused) {
  const UniqueFd socket = Connect();
  Send(socket,
       "GET /healthz HTTP/1.0\r\nX: " + std::string(HealthPort::kMaxRequestBytes - 26, 'x'));
  EXPECT_THAT(ReadAll(socket), StartsWith("HTTP/1.0 431 "));
}

TEST_F(HealthPortTest, AnAnswerThatIsLongerThanAnyBufferComesWhole) {
  metrics_ = std::string(16 << 20, 'x');
  const UniqueFd socket = Connect();
  Send(socket, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_EQ(BodyOf(ReadAll(socket)).size(), metrics_.size());
}

TEST_F(HealthPortTest, WhoDoesNotReadALongAnswerHoldsNobodyUp) {
  metrics_ = std::string(16 << 20, 'x');
  const UniqueFd slow = Connect();
  Send(slow, "GET /metrics HTTP/1.1\r\n\r\n");
  const UniqueFd prober = Connect();
  Send(prober, "GET /healthz HTTP/1.0\r\n\r\n");
  EXPECT_THAT(ReadAll(prober), StartsWith("HTTP/1.0 200 OK"));
}

TEST_F(HealthPortTest, MetricsThatAreMuchWorkAreSharedByThoseWhoAsk) {
  what_they_take_ = std::chrono::milliseconds(100);  // So they are as old as they may become.
  constexpr int kAsked = 5;
  for (int i = 0; i < kAsked; ++i) {
    const UniqueFd socket = Connect();
    Send(socket, "GET /metrics HTTP/1.1\r\n\r\n");
    EXPECT_EQ(BodyOf(ReadAll(socket)), metrics_);
  }
  EXPECT_LT(times_made_, kAsked);
}

TEST_F(HealthPortTest, SilentClientsMakeRoomForOthers) {
  std::vector<UniqueFd> silent;
  for (size_t i = 0; i < HealthPort::kMaxClients; ++i) {
    silent.push_back(Connect());
  }
  const UniqueFd prober = Connect();
  Send(prober, "GET /status HTTP/1.0\r\n\r\n");
  EXPECT_THAT(ReadAll(prober), StartsWith("HTTP/1.0 200 OK"));
  EXPECT_EQ(ReadAll(silent.front()), "");
}

TEST_F(HealthPortTest, SilentClientsAreDroppedInTheEnd) {
  const UniqueFd silent = Connect();
  EXPECT_EQ(ReadAll(silent), "");
}

}  // namespace
}  // namespace fsdprun
