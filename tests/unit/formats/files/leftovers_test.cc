#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "formats/files/output_folder.h"
#include "formats/files/output_stop.h"
#include "formats/files/temporary_name.h"
#include "fsdp_runtime/archive/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"

namespace fsdprun {
namespace {

using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;

/// A process that has begun a file and a folder of 1 MB, and waits.
class Writer {
 public:
  explicit Writer(const std::string& path) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      const OutputFile file(path + ".pt", 1 << 20, Existing::kRefuse);
      const OutputFolder folder(path, 1, Existing::kRefuse);
      WriteOutput(folder.Place("a"), "abc", Existing::kRefuse);
      const bool is_told = write(ends[1], "x", 1) == 1;
      while (is_told) {
        pause();
      }
      _exit(1);
    }
    close(ends[1]);
    char begun = 0;
    EXPECT_EQ(read(ends[0], &begun, 1), 1);
    close(ends[0]);
  }
  ~Writer() { Kill(); }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void Kill() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
      pid_ = -1;
    }
  }

 private:
  pid_t pid_ = -1;
};

TEST(LeftoversTest, OfAKilledProcessAreRemovedByTheNextOutput) {
  const TemporaryDirectory folder;
  Writer writer(folder / "out");
  RemoveLeftovers(folder / "out");
  EXPECT_EQ(NamesOf(folder.path()).size(), 2U) << "it is still being written";
  writer.Kill();
  EXPECT_EQ(NamesOf(folder.path()).size(), 2U);
  WriteOutput(folder / "other", "abc", Existing::kRefuse);
  EXPECT_EQ(NamesOf(folder.path()).size(), 3U) << "they are of another path";
  WriteOutput(folder / "out.pt", "abc", Existing::kRefuse);
  const OutputFolder next(folder / "out", 1, Existing::kRefuse);
  EXPECT_EQ(NamesOf(folder.path()).size(), 3U) << "the two files, and the new folder";
}

TEST(LeftoversTest, OfOtherHostsStay) {
  const TemporaryDirectory folder;
  WriteOutput(folder / "out.tmp-00000000-999999999-0", "abc", Existing::kRefuse);
  RemoveLeftovers(folder / "out");
  EXPECT_EQ(NamesOf(folder.path()).size(), 1U);
}

TEST(OutputStopTest, EndsWhatIsBegunAndRemovesIt) {
  const TemporaryDirectory folder;
  const pid_t pid = fork();  // It cannot be taken back.
  if (pid == 0) {
    bool is_right = !StopOutputs();
    const auto refuses = [&](const auto& action) {
      try {
        action();
      } catch (const Error& error) {
        return std::string(error.what()).find("interrupted") != std::string::npos;
      }
      return false;
    };
    {
      OutputFile file(folder / "a", 3, Existing::kRefuse);
      OutputFolder output(folder / "b", 3, Existing::kRefuse);
      is_right = is_right && StopOutputs() && refuses([&] { file.Write(0, "abc"); }) &&
                 refuses([&] { file.Publish(); }) &&
                 refuses([&] { output.Publish([](const std::string&) { return false; }); });
    }
    _exit(is_right && !StopOutputs() ? 0 : 1);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

}  // namespace
}  // namespace fsdprun
