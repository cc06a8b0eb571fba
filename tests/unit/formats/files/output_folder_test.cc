#include "formats/files/output_folder.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/fs.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "fsdp_runtime/archive/error.h"
#include "tests/unit/base/failing_system_call.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"
#include "tests/unit/formats/files/folder_content.h"

namespace fsdprun {
namespace {

using checkpoint::MessageOf;
using checkpoint::TemporaryDirectory;
using fsdp::archive::Error;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int64_t kMoreThanAnyDisk = int64_t{1} << 60;

/// A system call; with bits, only if the argument of that number has one of them.
struct Call {
  const char* name;
  long number;
  uint32_t bits = 0;
  uint32_t argument = 0;
};

void PrintTo(const Call& call, std::ostream* out) { *out << call.name; }

constexpr Call kLink{"link", SYS_linkat};
/// Files are published with other flags.
constexpr Call kExchange{"exchange", SYS_renameat2, RENAME_EXCHANGE, 4};
#ifdef SYS_unlink
constexpr Call kChmod{"chmod", SYS_chmod};
constexpr Call kRename{"rename", SYS_rename};
constexpr Call kUnlink{"unlink", SYS_unlink};
constexpr Call kRmdir{"rmdir", SYS_rmdir};
#else  // Some processors' kernels have only the calls that take a folder, too.
constexpr Call kChmod{"chmod", SYS_fchmodat};
constexpr Call kRename{"rename", SYS_renameat};
constexpr Call kUnlink{"unlink", SYS_unlinkat};
constexpr Call kRmdir{"rmdir", SYS_unlinkat, AT_REMOVEDIR, 2};
#endif

/// The process is killed when it is about to make that system call.
bool DieBefore(const Call& call) {
  constexpr uint16_t kLoad = BPF_LD | BPF_W | BPF_ABS;
  const auto argument =
      static_cast<uint32_t>(offsetof(seccomp_data, args) + call.argument * sizeof(uint64_t));
  const uint8_t to_kill = call.bits == 0 ? 2 : 0;
  sock_filter program[] = {
      {kLoad, 0, 0, offsetof(seccomp_data, nr)},
      {BPF_JMP | BPF_JEQ | BPF_K, to_kill, 3, static_cast<uint32_t>(call.number)},
      {kLoad, 0, 0, argument},
      {BPF_JMP | BPF_JSET | BPF_K, 0, 1, call.bits},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_KILL_PROCESS},
      {BPF_RET | BPF_K, 0, 0, SECCOMP_RET_ALLOW}};
  const sock_fprog filter{.len = 6, .filter = program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

bool NoneIsStale(const std::string& /*name*/) { return false; }

/// A folder `out` with an earlier output: "a" and "stale" of it, and the user's file and folder.
class ReplacedFolder : public testing::Test {
 protected:
  ReplacedFolder() {
    std::filesystem::create_directories(folder_ / "out/folder");
    for (const char* name : {"a", "stale", "mine", "folder/mine"}) {
      std::ofstream(folder_ / ("out/" + std::string(name))) << "old";
    }
  }

  void Replace() {
    OutputFolder output(folder_ / "out", 1, Existing::kReplace);
    WriteOutput(output.Place("a"), "new", Existing::kRefuse);
    output.Publish([](const std::string& name) { return name == "stale"; });
  }

  /// Where that call fails. Its error, or "".
  std::string ReplaceWith(const std::vector<FailingSystemCall>& calls) {
    std::string message;
    std::thread([&] {
      for (const FailingSystemCall& call : calls) {
        EXPECT_TRUE(FailFromNowOn(call)) << "this kernel takes no filters";
      }
      try {
        Replace();
      } catch (const Error& error) {
        message = error.what();
      }
    }).join();
    return message;
  }

  void ExpectOld() {
    EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("out"));
    EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a", "folder", "mine", "stale"));
    EXPECT_EQ(Content(folder_ / "out/a"), "old");
    EXPECT_EQ(Content(folder_ / "out/folder/mine"), "old");
  }

  void ExpectNew() {
    EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a", "folder", "mine"));
    EXPECT_EQ(Content(folder_ / "out/a"), "new");
    EXPECT_EQ(Content(folder_ / "out/mine"), "old");
    EXPECT_EQ(Content(folder_ / "out/folder/mine"), "old");
  }

  const TemporaryDirectory folder_;
};

TEST_F(ReplacedFolder, StaysWholeWhereTheNewOneCannotTakeItsPlace) {
  EXPECT_THAT(
      ReplaceWith(
          {{.number = SYS_renameat2, .error = EIO, .bits = RENAME_EXCHANGE, .argument = 4}}),
      HasSubstr(folder_ / "out: Input/output error"));
  ExpectOld();
}

TEST_F(ReplacedFolder, StaysWholeIfAFolderHasTheNameOfANewFile) {
  std::filesystem::rename(folder_ / "out/folder", folder_ / "out/stale.d");
  std::filesystem::remove(folder_ / "out/a");
  std::filesystem::create_directory(folder_ / "out/a");
  const std::string message = MessageOf<Error>([&] { Replace(); });
  EXPECT_THAT(message, HasSubstr("out/a: it is a folder; move it away"));
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("out"));
  EXPECT_THAT(NamesOf(folder_ / "out"), ElementsAre("a", "mine", "stale", "stale.d"));
  EXPECT_EQ(Content(folder_ / "out/stale"), "old");
}

TEST_F(ReplacedFolder, IsKeptWhereItCannotBeRemoved) {
  const std::string message = ReplaceWith({{.number = kUnlink.number, .error = EROFS}});
  EXPECT_THAT(message, HasSubstr("out is written, but what it replaces is still at "));
  ExpectNew();
  const std::vector<std::string> names = NamesOf(folder_.path());
  ASSERT_EQ(names.size(), 2U);
  EXPECT_THAT(names[1], StartsWith("out.replaced-"));
  EXPECT_THAT(message, HasSubstr(names[1]));
  EXPECT_EQ(Content(folder_ / (names[1] + "/stale")), "old");
}

class KilledReplacement : public ReplacedFolder, public testing::WithParamInterface<Call> {};

TEST_P(KilledReplacement, LeavesAWholeFolder) {
  const Call call = GetParam();
  const pid_t pid = fork();
  if (pid == 0) {
    if (DieBefore(call)) {
      Replace();
    }
    _exit(0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status)) << call.name << " was not reached";
  const bool is_new = Content(folder_ / "out/a") == "new";
  const std::string name = call.name;
  EXPECT_EQ(is_new, name == "unlink" || name == "rmdir");
  EXPECT_EQ(Content(folder_ / "out/a"), is_new ? "new" : "old");
  EXPECT_EQ(Content(folder_ / "out/stale"), is_new ? "" : "old");
  EXPECT_EQ(Content(folder_ / "out/mine"), "old");
  EXPECT_EQ(Content(folder_ / "out/folder/mine"), "old");
}

INSTANTIATE_TEST_SUITE_P(BeforeEachCall, KilledReplacement,
                         testing::Values(kLink, kChmod, kRename, kExchange, kUnlink, kRmdir));

TEST_F(ReplacedFolder, IsReplacedAndOtherFilesStay) {
  Replace();
  ExpectNew();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("out"));
}

TEST_F(ReplacedFolder, IsReplacedWhereFoldersCannotBeExchanged) {
  EXPECT_EQ(ReplaceWith({{.number = SYS_renameat2, .error = EINVAL}}), "");
  ExpectNew();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("out"));
}

TEST_F(ReplacedFolder, IsReplacedWhereFilesCannotBeLinked) {
  EXPECT_EQ(ReplaceWith({{.number = SYS_linkat, .error = EPERM}}), "");
  ExpectNew();
  EXPECT_THAT(NamesOf(folder_.path()), ElementsAre("out"));
}

TEST_F(ReplacedFolder, PassesOnItsMode) {
  ASSERT_EQ(chmod((folder_ / "out").c_str(), 02770), 0);
  Replace();
  struct stat stats {};
  ASSERT_EQ(stat((folder_ / "out").c_str(), &stats), 0);
  EXPECT_EQ(stats.st_mode & 07777U, 02770U);
}

TEST_F(ReplacedFolder, IsWhatALinkNames) {
  std::filesystem::rename(folder_ / "out", folder_ / "real");
  std::filesystem::create_directory_symlink("real", folder_ / "out");
  Replace();
  ExpectNew();
  EXPECT_TRUE(std::filesystem::is_symlink(folder_ / "out"));
  EXPECT_EQ(Content(folder_ / "real/a"), "new");
}

TEST(OutputFolderTest, UnpublishedFolderDisappears) {
  const TemporaryDirectory folder;
  {
    const OutputFolder output(folder / "out", 1, Existing::kRefuse);
    WriteOutput(output.Place("a"), "abc", Existing::kRefuse);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(OutputFolderTest, ExistingFolderIsRefused) {
  const TemporaryDirectory folder;
  std::filesystem::create_directory(folder / "out");
  EXPECT_THAT(MessageOf<Error>([&] { OutputFolder(folder / "out", 1, Existing::kRefuse); }),
              HasSubstr("--force"));
  WriteOutput(folder / "file", "old", Existing::kRefuse);
  EXPECT_THAT(MessageOf<Error>([&] { OutputFolder(folder / "file", 1, Existing::kReplace); }),
              HasSubstr("no folder"));
  EXPECT_THAT(
      MessageOf<Error>([&] { OutputFolder(folder / "new", kMoreThanAnyDisk, Existing::kRefuse); }),
      HasSubstr("bytes are needed"));
}

TEST(OutputFolderTest, AppearsWithAllItsFiles) {
  const TemporaryDirectory folder;
  OutputFolder output(folder / "parent/out/", 1, Existing::kRefuse);
  WriteOutput(output.Place("a"), "abc", Existing::kRefuse);
  EXPECT_FALSE(std::filesystem::exists(folder / "parent/out"));
  output.Publish(NoneIsStale);
  EXPECT_EQ(Content(folder / "parent/out/a"), "abc");
  EXPECT_THAT(NamesOf(folder / "parent"), ElementsAre("out"));
}

}  // namespace
}  // namespace fsdprun
