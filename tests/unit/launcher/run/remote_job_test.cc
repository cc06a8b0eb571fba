#include "launcher/run/remote_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace fsdprun {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

/// A job of one node with one worker, which exits with `code`. Its part is over with it, or only
/// when nobody waits for it any longer.
class OneNode : public RemoteJob::Parts {
 public:
  OneNode(int code, bool ends_with_the_job) : code_(code), ends_with_the_job_(ends_with_the_job) {
    plan_.program = {"train.py"};
    plan_.rdzv_id = "one";
    plan_.backend = RendezvousBackend::kC10d;
    plan_.agents = {{.daemon = {"127.0.0.1", 1}}};
  }

  int Run() {
    RemoteJob job(plan_, environment_, *this, {.parts_end = std::chrono::milliseconds(50)});
    job_ = &job;
    ::testing::internal::CaptureStderr();
    const int code = job.Run();
    said_ = ::testing::internal::GetCapturedStderr();
    return code;
  }
  const std::string& said() const { return said_; }

 private:
  absl::StatusOr<std::string> Prepare() override { return "token"; }
  void StartAll() override {
    AgentJoined joined;
    joined.node.incarnation = Incarnation(7);
    joined.node.name = "127.0.0.1";
    joined.node.address = "127.0.0.1";
    joined.node.local_world_size = 1;
    WorkerExit exit;
    exit.exit_code = code_;
    SayInOrder({joined, AgentPrepared{StoreEndpoint{"127.0.0.1", 1}}, AgentStarted{},
                WorkerExited{exit}, WorkersStopped{}, AgentLeft{}});
  }
  void SayInOrder(std::vector<AgentMessage> messages) {
    if (messages.empty()) {
      return;
    }
    job_->loop().Post([this, messages = std::move(messages)] {
      const bool joins = std::holds_alternative<AgentJoined>(messages.front());
      job_->head().host().local_link().Send(
          {Incarnation(7), Generation(joins ? 0 : 1), messages.front()});
      SayInOrder({messages.begin() + 1, messages.end()});
    });
  }
  void Resume() override {}
  void OnOutcome() override { is_over_ = ends_with_the_job_; }
  void Release(size_t /*node*/) override {}
  void ReleaseAll() override { LeaveAll(); }
  void LeaveAll() override {
    is_over_ = true;
    job_->StopIfAllAreOver();
  }
  bool IsOver(size_t /*node*/) const override { return is_over_; }
  std::string HowLeft() const override { return "leaving it"; }

  const int code_;
  const bool ends_with_the_job_;
  LaunchPlan plan_;
  Environment environment_;
  RemoteJob* job_ = nullptr;
  bool is_over_ = false;
  std::string said_;
};

TEST(RemoteJobTest, OutputThatIsNotWaitedForAnyLongerIsNoSuccess) {
  OneNode node(/*code=*/0, /*ends_with_the_job=*/false);
  EXPECT_EQ(node.Run(), kOutputLostCode);
  EXPECT_THAT(node.said(), HasSubstr("not all of its nodes have ended within 0.05 s; "
                                     "leaving it. The rest of the output of 127.0.0.1 is "
                                     "not shown, and the exit code will not be 0"));
}

TEST(RemoteJobTest, JobThatHasFailedKeepsItsCode) {
  OneNode node(/*code=*/7, /*ends_with_the_job=*/false);
  EXPECT_EQ(node.Run(), 1);
  EXPECT_THAT(node.said(), HasSubstr("is not shown"));
}

TEST(RemoteJobTest, JobWhosePartsEndInTimeSucceeds) {
  OneNode node(/*code=*/0, /*ends_with_the_job=*/true);
  EXPECT_EQ(node.Run(), 0);
  EXPECT_THAT(node.said(), Not(HasSubstr("is not shown")));
}

}  // namespace
}  // namespace fsdprun
