#include "launcher/run/job_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "launcher/run/coordinator_host.h"

namespace fsdprun {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// A job of one node and two workers, whose agent tells vitals when it is asked to.
class JobWatchTest : public ::testing::Test {
 protected:
  void Start(OnHang on_hang, bool is_on = true) {
    CoordinatorHost::Options options;
    options.run_id = "run";
    options.spec.max_restarts = 1;
    options.spec.hang_ends_job = on_hang == OnHang::kAbort;
    options.watch.is_on = is_on;
    options.watch.on_hang = on_hang;
    if (has_limit_) {
      options.watch.watch.limits.fixed = milliseconds(1);
    }
    CoordinatorHost::Hooks hooks;
    hooks.on_finish = [](const JobOutcome&) {};
    hooks.on_finding = [this](const watch::Finding& finding) { found_.push_back(finding); };
    hooks.on_report = [this](const std::string& name, const std::string& text) {
      report_ = name + "\n" + text;
      loop_.Post([this] { loop_.Stop(); });
      return keeps_reports_ ? "/logs/" + name : "";
    };
    host_ = std::make_unique<CoordinatorHost>(loop_, options, std::move(hooks));
    CoordinatorLink::Callbacks callbacks;
    callbacks.on_up = [] {};
    callbacks.on_message = [this](const ToAgent& message) {
      stops_ += std::holds_alternative<StopWorkers>(message.message) ? 1 : 0;
    };
    callbacks.on_aside = [this](const v1::ToNodeAside& aside) { Hear(aside); };
    host_->local_link().SetCallbacks(std::move(callbacks));
    host_->local_link().Open(/*patience=*/1);
    NodeInfo node;
    node.incarnation = Incarnation(1);
    node.name = "here";
    node.local_world_size = 2;
    Say(0, AgentJoined{node, {}, {}});
    Say(1, AgentPrepared{StoreEndpoint{"127.0.0.1", 7}});
    Say(1, AgentStarted{});
  }
  ~JobWatchTest() override { loop_.Cancel(timer_); }

  void Say(uint64_t generation, AgentMessage message) {
    host_->local_link().Send(FromAgent{Incarnation(1), Generation(generation), std::move(message)});
  }
  void Hear(const v1::ToNodeAside& aside) {
    if (aside.has_vitals()) {
      every_ = Duration(aside.vitals().every_ns());
      if (every_ > Duration::zero()) {
        TellVitals();
      }
    } else if (aside.has_stacks() && answers_stacks_) {
      asked_ = {aside.stacks().ranks().begin(), aside.stacks().ranks().end()};
      v1::FromNodeAside answer;
      v1::WorkerStacks* stacks = answer.mutable_answer()->mutable_stacks();
      answer.mutable_answer()->set_id(aside.id());
      answer.mutable_answer()->set_is_last(true);
      stacks->set_rank(1);
      stacks->set_text("#0 nanosleep");
      host_->local_link().SendAside(answer);
    }
  }
  /// Rank 1 is stopped; told more often than it is wanted, to have it over sooner.
  void TellVitals() {
    v1::FromNodeAside aside;
    aside.mutable_vitals()->set_generation(generation_);
    for (const int rank : {0, 1}) {
      v1::WorkerVitals* worker = aside.mutable_vitals()->add_workers();
      worker->set_rank(rank);
      worker->set_pid(100 + rank);
      worker->set_state(rank == 1 ? 'T' : 'S');
    }
    host_->local_link().SendAside(aside);
    Say(0, AgentHeartbeat{});
    timer_ = loop_.At(MonoNow() + milliseconds(200), [this] { TellVitals(); });
  }

  EventLoop loop_;
  std::vector<watch::Finding> found_;
  std::string report_;
  uint64_t generation_ = 1;
  bool has_limit_ = true;
  bool answers_stacks_ = true;
  bool keeps_reports_ = true;
  Duration every_{};
  std::vector<int> asked_;
  int stops_ = 0;
  EventLoop::TimerId timer_ = 0;
  std::unique_ptr<CoordinatorHost> host_;
};

TEST_F(JobWatchTest, HangIsToldWithStacksAndNothingIsDone) {
  Start(OnHang::kReport);
  loop_.Run();
  EXPECT_EQ(every_, std::chrono::seconds(1));
  EXPECT_THAT(asked_, ElementsAre(1));
  ASSERT_EQ(found_.size(), 2u);
  const auto& hang = std::get<watch::HangFound>(found_[0]);
  EXPECT_EQ(hang.action, "report");
  EXPECT_THAT(hang.what, HasSubstr("rank 1 (pid 101) on node here has been stopped"));
  const auto& reported = std::get<watch::HangReported>(found_[1]);
  EXPECT_EQ(reported.file, "hang-1.txt");
  ASSERT_EQ(reported.stacks.size(), 1u);
  EXPECT_EQ(reported.stacks[0].text, "#0 nanosleep");
  EXPECT_THAT(report_, AllOf(HasSubstr("hang-1.txt\n"), HasSubstr("rank 0  pid 100  state S"),
                             HasSubstr("Stacks of rank 1 on node here:\n#0 nanosleep")));
  EXPECT_EQ(stops_, 0);
  EXPECT_EQ(host_->vitals().entries().size(), 2u);
}

TEST_F(JobWatchTest, ReportGoesOutWithoutStacksThatDoNotCome) {
  answers_stacks_ = false;
  Start(OnHang::kReport);
  loop_.Run();
  ASSERT_EQ(found_.size(), 2u);
  EXPECT_THAT(std::get<watch::HangReported>(found_[1]).stacks[0].problem,
              HasSubstr("did not answer"));
}

TEST_F(JobWatchTest, WorldIsStoppedAsAfterAFailureWhereThatIsWanted) {
  Start(OnHang::kRestart);
  loop_.Run();
  EXPECT_EQ(stops_, 1);
  EXPECT_EQ(host_->machine().phase(), job::Phase::kStopping);
  EXPECT_EQ(host_->machine().stop()->is_after_failure, true);
  ASSERT_EQ(found_.size(), 3u);  // With the world, the hang is over.
  Say(1, WorkersStopped{});
  EXPECT_EQ(host_->machine().restarts_used(), 1);
}

TEST_F(JobWatchTest, NothingIsDoneYetWhereTheLimitIsLearnt) {
  has_limit_ = false;
  Start(OnHang::kRestart);
  loop_.Run();
  EXPECT_EQ(stops_, 0);
  EXPECT_THAT(report_, HasSubstr("all workers are stopped, as after a failure if it lasts for"));
  EXPECT_EQ(found_.size(), 2u);
}

TEST_F(JobWatchTest, AgentsAreAskedNoMoreWhenTheWorldHasEnded) {
  Start(OnHang::kRestart);
  loop_.Run();
  loop_.At(MonoNow() + milliseconds(100), [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_EQ(every_, Duration::zero());
}

TEST_F(JobWatchTest, FileThatIsNotKeptIsNotNamed) {
  keeps_reports_ = false;
  Start(OnHang::kReport);
  loop_.Run();
  EXPECT_EQ(std::get<watch::HangReported>(found_[1]).file, "");
}

TEST_F(JobWatchTest, JobIsEndedWhereThatIsWanted) {
  Start(OnHang::kAbort);
  loop_.Run();
  Say(1, WorkersStopped{});
  ASSERT_TRUE(host_->machine().outcome().has_value());
  EXPECT_THAT(host_->machine().outcome()->reason, HasSubstr("--on-hang=abort"));
  EXPECT_EQ(host_->machine().outcome()->failure->root.kind, CauseKind::kWorkerHung);
}

TEST_F(JobWatchTest, VitalsAreToldAlsoWhereNothingIsLookedFor) {
  Start(OnHang::kAbort, /*is_on=*/false);
  loop_.At(MonoNow() + std::chrono::seconds(1), [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_EQ(every_, std::chrono::seconds(1));
  EXPECT_EQ(host_->vitals().entries().size(), 2u);
  EXPECT_THAT(found_, IsEmpty());
}

TEST_F(JobWatchTest, VitalsOfAnotherWorldAreDropped) {
  generation_ = 7;
  Start(OnHang::kAbort);
  loop_.At(MonoNow() + std::chrono::seconds(2), [this] { loop_.Stop(); });
  loop_.Run();
  EXPECT_THAT(found_, IsEmpty());
  EXPECT_TRUE(host_->vitals().entries().empty());
}

}  // namespace
}  // namespace fsdprun
