#include "agent/local/worker_vitals.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "agent/local/process_use.h"
#include "tests/unit/base/remove_folder.h"

namespace fsdprun {
namespace {

using Page = contract::VitalsPage;
using std::chrono::milliseconds;

TEST(ProcessUseTest, IsReadFromTheKernelsText) {
  const auto use = ParseProcessUse(
      "4242 (a) b (c) S 1 4242 4242 0 -1 4194560 5 0 0 0 7 3 0 0 20 0 9 0 100 4096 250 18446744",
      10, 4096);
  ASSERT_TRUE(use.has_value());
  EXPECT_EQ(use->state, 'S');
  EXPECT_EQ(use->cpu_ns, 100);
  EXPECT_EQ(use->rss_bytes, 250 * 4096);
  EXPECT_FALSE(ParseProcessUse("", 10, 4096).has_value());
  EXPECT_FALSE(ParseProcessUse("4242 (a", 10, 4096).has_value());
  EXPECT_FALSE(ParseProcessUse("4242 (a) S 1 2", 10, 4096).has_value());
}

TEST(ProcessUseTest, ShareOfMemory) {
  EXPECT_EQ(ParsePssBytes("x [rollup]\nRss:   900 kB\nPss:     123 kB\nPss_Anon: 1 kB\n"),
            123 * 1024);
  EXPECT_EQ(ParsePssBytes("Rss: 1 kB\n"), 0);
  EXPECT_GT(ReadPssBytes(::getpid()), 0);
}

TEST(ProcessUseTest, AProcessThatHasEndedIsNotTakenForAnother) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) {
      ::pause();
    }
  }
  const ProcessGauge gauge(child);
  ASSERT_TRUE(gauge.Read().has_value());
  EXPECT_GT(gauge.Read()->rss_bytes, 0);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  EXPECT_FALSE(gauge.Read().has_value());
}

class WorkerVitalsTest : public ::testing::Test {
 protected:
  WorkerVitalsTest() {
    EXPECT_NE(::mkdtemp(folder_.data()), nullptr);
    dirs_.vitals = folder_ + "/pages";
  }
  ~WorkerVitalsTest() override { RemoveFolder(folder_); }

  Page* Mapped(Generation generation, int local_rank) const {
    const UniqueFd fd(
        ::open(VitalsPath(dirs_, generation, local_rank).c_str(), O_RDWR | O_CLOEXEC));
    void* const data =
        ::mmap(nullptr, Page::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
    return data == MAP_FAILED ? nullptr : static_cast<Page*>(data);
  }
  std::vector<std::string> Files() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(dirs_.vitals)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  /// Runs the loop until `condition` holds, or for a minute.
  bool RunUntil(const std::function<bool()>& condition) {
    const MonoTime deadline = MonoNow() + std::chrono::minutes(1);
    std::function<void()> look = [&] {
      if (condition() || MonoNow() >= deadline) {
        loop_.Stop();
      } else {
        loop_.At(MonoNow() + milliseconds(2), [&] { look(); });
      }
    };
    loop_.Post([&] { look(); });
    loop_.Run();
    return condition();
  }

  std::string folder_ = ::testing::TempDir() + "worker_vitals_XXXXXX";
  RunDirs dirs_;
  EventLoop loop_;
};

TEST_F(WorkerVitalsTest, PagesAreOfOneGeneration) {
  const WorkerPages first = MakeWorkerPages(dirs_, Generation(1), 2);
  EXPECT_EQ(first.problem, "");
  EXPECT_EQ(first.views.size(), 2u);
  EXPECT_EQ(Files(), (std::vector<std::string>{"1.0", "1.1"}));
  const WorkerPages second = MakeWorkerPages(dirs_, Generation(12), 1);
  EXPECT_EQ(Files(), (std::vector<std::string>{"12.0"}));
  EXPECT_EQ(OpenWorkerPages(dirs_, Generation(12), 1).views.size(), 1u);
  const WorkerPages missing = OpenWorkerPages(dirs_, Generation(12), 2);
  EXPECT_EQ(missing.views.size(), 1u);
  EXPECT_NE(missing.problem.find("12.1"), std::string::npos);
  EXPECT_EQ(MakeWorkerPages(RunDirs(), Generation(1), 2).views.size(), 0u);
}

TEST_F(WorkerVitalsTest, ReadsWhatIsSeenAndWhatIsSaid) {
  WorkerVitals vitals(loop_);
  vitals.TakePages(MakeWorkerPages(dirs_, Generation(5), 2));
  EXPECT_TRUE(vitals.HasPage(Generation(5), 1));
  EXPECT_FALSE(vitals.HasPage(Generation(5), 2));
  EXPECT_FALSE(vitals.HasPage(Generation(4), 1));
  vitals.Begin(Generation(5), /*rank_offset=*/8);
  vitals.NoteStarted(0, ::getpid());
  vitals.NoteStarted(1, ::getppid());
  Page* const page = Mapped(Generation(5), 1);
  page->tokens = 77;
  page->version = Page::kVersion;
  const v1::NodeVitals node = vitals.Read(MonoNow());
  ASSERT_EQ(node.workers_size(), 2);
  EXPECT_EQ(node.generation(), 5u);
  EXPECT_EQ(node.workers(0).rank(), 8);
  EXPECT_EQ(node.workers(0).pid(), ::getpid());
  EXPECT_EQ(node.workers(0).state(), static_cast<uint32_t>('R'));
  EXPECT_GT(node.workers(0).rss_bytes(), 1 << 20);
  EXPECT_FALSE(node.workers(0).has_own());
  EXPECT_EQ(node.workers(1).rank(), 9);
  EXPECT_EQ(node.workers(1).own().tokens(), 77);
  ::munmap(page, Page::kBytes);
  vitals.Begin(Generation(6), 8);  // whose pages could not be made
  EXPECT_EQ(vitals.Read(MonoNow()).workers_size(), 0);
  vitals.NoteStarted(1, ::getppid());
  EXPECT_FALSE(vitals.Read(MonoNow()).workers(0).has_own());
}

TEST_F(WorkerVitalsTest, ShareOfMemoryIsReadAside) {
  WorkerVitals vitals(loop_);
  vitals.Begin(Generation(5), 0);
  vitals.NoteStarted(0, ::getpid());
  MonoTime now = MonoNow();
  EXPECT_EQ(vitals.Read(now).workers(0).pss_bytes(), 0);
  int64_t pss = 0;
  EXPECT_TRUE(RunUntil([&] { return (pss = vitals.Read(now).workers(0).pss_bytes()) > 0; }));
  // Not again before its time.
  const std::vector<char> more(64 << 20, 'x');
  EXPECT_EQ(vitals.Read(now + WorkerVitals::kPssPeriod / 2).workers(0).pss_bytes(), pss);
  now += WorkerVitals::kPssPeriod;
  EXPECT_TRUE(RunUntil([&] { return vitals.Read(now).workers(0).pss_bytes() > pss + (32 << 20); }));
  EXPECT_EQ(more.back(), 'x');
}

TEST_F(WorkerVitalsTest, ManyWorkersAreRead) {
  constexpr int kWorkers = 512;
  WorkerVitals vitals(loop_);
  WorkerPages pages = MakeWorkerPages(dirs_, Generation(1), kWorkers);
  ASSERT_EQ(pages.views.size(), static_cast<size_t>(kWorkers)) << pages.problem;
  vitals.TakePages(std::move(pages));
  vitals.Begin(Generation(1), 0);
  for (int local_rank = 0; local_rank < kWorkers; ++local_rank) {
    vitals.NoteStarted(local_rank, ::getpid());
    Page* const page = Mapped(Generation(1), local_rank);
    page->collective_began_ns = 1;
    page->version = Page::kVersion;
    ::munmap(page, Page::kBytes);
  }
  EXPECT_EQ(vitals.Read(MonoNow()).workers_size(), kWorkers);
}

/// Agents that begin in the same instant do not go on so.
TEST_F(WorkerVitalsTest, ABeatHasItsOwnPlaceInThePeriod) {
  int told = 0;
  VitalsBeat beat(loop_, /*first_share=*/0.25, [&] { ++told; });
  const MonoTime began = MonoNow();
  beat.Want(std::chrono::seconds(2));
  EXPECT_TRUE(RunUntil([&] { return told == 2; }));
  EXPECT_GE(MonoNow() - began, milliseconds(500));
  EXPECT_LT(MonoNow() - began, milliseconds(1900));
}

/// A script that has started the program: a session leader that sleeps, and its child.
class FamilyTest : public WorkerVitalsTest {
 protected:
  FamilyTest() {
    int ends[2];
    EXPECT_EQ(::pipe(ends), 0);
    script_ = ::fork();
    if (script_ == 0) {
      ::setsid();
      const pid_t program = ::fork();
      if (program == 0) {
        for (std::atomic<int> turns{0};; ++turns) {
        }
      }
      EXPECT_EQ(::write(ends[1], &program, sizeof(program)), ssize_t{sizeof(program)});
      for (;;) {
        ::pause();
      }
    }
    EXPECT_EQ(::read(ends[0], &program_, sizeof(program_)), ssize_t{sizeof(program_)});
    ::close(ends[0]);
    ::close(ends[1]);
  }
  ~FamilyTest() override {
    ::kill(program_, SIGKILL);
    ::kill(script_, SIGKILL);
    ::waitpid(script_, nullptr, 0);
  }
  v1::WorkerVitals Now(WorkerVitals* vitals) { return vitals->Read(MonoNow()).workers(0); }

  pid_t script_ = 0;
  pid_t program_ = 0;
};

TEST_F(FamilyTest, ProgramBelowAScriptIsMeasured) {
  WorkerVitals vitals(loop_);
  vitals.Begin(Generation(1), 0);
  vitals.NoteStarted(0, script_);
  EXPECT_TRUE(RunUntil([&] { return Now(&vitals).cpu_ns() > 50'000'000; }));
  EXPECT_EQ(Now(&vitals).pid(), script_);
  EXPECT_EQ(vitals.SpeakerOf(0), script_);
  ::kill(program_, SIGSTOP);
  EXPECT_TRUE(RunUntil([&] { return Now(&vitals).state() == 'T'; }));
  const int64_t before = Now(&vitals).cpu_ns();
  ::kill(program_, SIGKILL);  // What it has used is not taken back.
  EXPECT_TRUE(RunUntil([&] { return Now(&vitals).state() == 'S'; }));
  EXPECT_GE(Now(&vitals).cpu_ns(), before);
  vitals.NoteEnded(0);
  EXPECT_EQ(vitals.Read(MonoNow()).workers_size(), 0);
  EXPECT_EQ(vitals.SpeakerOf(0), 0);
}

TEST_F(FamilyTest, WhoWritesThePageIsMeant) {
  WorkerVitals vitals(loop_);
  vitals.TakePages(MakeWorkerPages(dirs_, Generation(1), 1));
  vitals.Begin(Generation(1), 0);
  vitals.NoteStarted(0, script_);
  Page* const page = Mapped(Generation(1), 0);
  page->pid = static_cast<uint64_t>(::getpid());  // Nobody of the family.
  page->version = Page::kVersion;
  EXPECT_EQ(Now(&vitals).pid(), script_);
  page->pid = static_cast<uint64_t>(program_);
  EXPECT_EQ(Now(&vitals).pid(), program_);
  EXPECT_EQ(vitals.SpeakerOf(0), program_);
  ::kill(program_, SIGSTOP);
  EXPECT_TRUE(RunUntil([&] { return Now(&vitals).state() == 'T'; }));
  ::kill(program_, SIGKILL);
  EXPECT_TRUE(RunUntil([&] { return Now(&vitals).state() != 'T'; }));
  ::munmap(page, Page::kBytes);
}

TEST_F(WorkerVitalsTest, ABeatGoesOnUntilNobodyWantsIt) {
  int told = 0;
  VitalsBeat beat(loop_, /*first_share=*/1, [&] { ++told; });
  EXPECT_EQ(told, 0);
  beat.Want(milliseconds(1));
  EXPECT_EQ(told, 1);
  const MonoTime began = MonoNow();
  EXPECT_TRUE(RunUntil([&] { return told >= 3; }));
  EXPECT_GE(MonoNow() - began, 2 * VitalsBeat::kLeastPeriod);  // no more often
  beat.Want(Duration::zero());
  const int before = told;
  const MonoTime until = MonoNow() + 3 * VitalsBeat::kLeastPeriod;
  EXPECT_TRUE(RunUntil([&] { return MonoNow() >= until; }));
  EXPECT_EQ(told, before);
}

}  // namespace
}  // namespace fsdprun
