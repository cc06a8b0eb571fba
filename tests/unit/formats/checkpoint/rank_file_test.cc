#include "formats/checkpoint/rank_file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <functional>
#include <string>
#include <vector>

#include "formats/checkpoint/error.h"
#include "tests/unit/formats/checkpoint/temporary_directory.h"

namespace {

struct RangeCall {
  int64_t begin;
  int64_t end;
  bool waits;
  bool operator==(const RangeCall&) const = default;
};

/// What sync_file_range does in this process: notes the call, and returns an errno.
std::function<int(const RangeCall&)> on_range;

}  // namespace

// In the place of libc's.
extern "C" int sync_file_range(int /*file*/, off64_t offset, off64_t count, unsigned flags) {
  const RangeCall call{offset, offset + count, (flags & SYNC_FILE_RANGE_WAIT_AFTER) != 0};
  errno = on_range ? on_range(call) : 0;
  return errno == 0 ? 0 : -1;
}

namespace fsdprun::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kPiece = int64_t{128} << 10;  // is written at a time
constexpr int64_t kWindow = 2 * kPiece;

class RankFileTest : public testing::Test {
 protected:
  ~RankFileTest() override { on_range = nullptr; }

  /// A file of three windows and one piece.
  ManifestFile Write(FileSystem& file_system) const {
    BlobToWrite blob;
    blob.key = "object";
    blob.object.assign(3 * kWindow + kPiece, 'x');
    return WriteRankFile(file_system, dir_.path(), 3, {blob}, kWindow);
  }

  const TemporaryDirectory dir_{MemoryDirectory()};
};

TEST_F(RankFileTest, DiskIsAFewWindowsBehindAtMost) {
  std::vector<RangeCall> calls;
  on_range = [&](const RangeCall& call) {
    calls.push_back(call);
    return 0;
  };
  FileSystem file_system;
  EXPECT_EQ(Write(file_system).bytes, 3 * kWindow + kPiece);
  EXPECT_THAT(calls,
              ElementsAre(RangeCall{0, kWindow, false}, RangeCall{kWindow, 2 * kWindow, false},
                          RangeCall{0, kWindow, true}, RangeCall{2 * kWindow, 3 * kWindow, false},
                          RangeCall{kWindow, 2 * kWindow, true}));
}

/// As a save that must be given up.
class GivesUp : public FileSystem {
 public:
  bool must_give_up = false;
  int64_t byte_count = 0;

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "write") {
      byte_count += static_cast<int64_t>(effect.bytes.size());
      return must_give_up ? ECANCELED : 0;
    }
    return 0;
  }
};

TEST_F(RankFileTest, IsGivenUpWhileTheDiskIsWaitedFor) {
  GivesUp file_system;
  on_range = [&](const RangeCall& call) {
    file_system.must_give_up = call.waits;
    return 0;
  };
  try {
    Write(file_system);
    ADD_FAILURE() << "it was to be given up";
  } catch (const CheckpointError& error) {
    EXPECT_EQ(error.error_number(), ECANCELED);
  }
  EXPECT_EQ(file_system.byte_count, 2 * kWindow + kPiece);
}

TEST_F(RankFileTest, WriteThatFailsLaterIsAnErrorOfTheFile) {
  for (const int number : {EIO, ENOSPC}) {
    on_range = [&](const RangeCall& call) { return call.waits ? number : 0; };
    FileSystem file_system;
    try {
      Write(file_system);
      ADD_FAILURE() << "the fsync would not tell it again";
    } catch (const CheckpointError& error) {
      EXPECT_EQ(error.error_number(), number);
      EXPECT_THAT(error.what(), HasSubstr("cannot write " + (dir_ / "__3_0.distcp")));
    }
  }
}

/// Notes how many bytes are written at a time.
class NotesPieces : public FileSystem {
 public:
  std::vector<int64_t> pieces;

 protected:
  int Intercept(const Effect& effect) override {
    if (effect.name == "write") {
      pieces.push_back(static_cast<int64_t>(effect.bytes.size()));
    }
    return 0;
  }
};

TEST_F(RankFileTest, PiecesEndWherePagesOfTheFileDo) {
  BlobToWrite blob;
  blob.key = "object";
  blob.object.assign(3 * kPiece + 100, 'x');
  NotesPieces file_system;
  WriteRankFile(file_system, dir_.path(), 3, {blob, blob}, kWindow);
  EXPECT_THAT(file_system.pieces,
              ElementsAre(kPiece, kPiece, kPiece, 100, kPiece - 100, kPiece, kPiece, 200));
}

TEST_F(RankFileTest, FileSystemThatCannotBePacedIsWrittenToAllTheSame) {
  FileSystem file_system;
  const ManifestFile expected = Write(file_system);
  for (const int number : {ENOSYS, EINVAL, ESPIPE}) {
    on_range = [&](const RangeCall&) { return number; };
    EXPECT_EQ(Write(file_system).xxh3, expected.xxh3);
  }
  EXPECT_EQ(HashBytes(ReadWholeFile(dir_ / "__3_0.distcp", int64_t{1} << 30)), expected.xxh3);
}

}  // namespace
}  // namespace fsdprun::checkpoint
