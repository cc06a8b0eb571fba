#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "tests/unit/worker/checkpoint/temporary_directory.h"
#include "worker/checkpoint/error.h"
#include "worker/checkpoint/pickle_reader.h"
#include "worker/checkpoint/pickle_writer.h"

namespace fsdprun::worker::checkpoint {
namespace {

using ::testing::HasSubstr;

constexpr PickleGlobal kSize[] = {{"torch", "Size"}};

std::string Refusal(const std::string& bytes) {
  return MessageOf<CheckpointError>([&] { ReadPickle(bytes, kSize, "the file"); });
}

std::string Bytes(std::initializer_list<int> values) {
  std::string bytes;
  for (const int value : values) {
    bytes += static_cast<char>(value);
  }
  return bytes;
}

TEST(PickleTest, IntegersOfAllSizesComeBack) {
  for (const int64_t value :
       {int64_t{0}, int64_t{255}, int64_t{256}, int64_t{-1}, int64_t{1} << 31, -(int64_t{1} << 31),
        std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min()}) {
    PickleWriter out;
    out.Int(value);
    const std::string bytes = out.Finish();
    const PickleTree tree = ReadPickle(bytes, {}, "it");
    EXPECT_EQ(tree.root().kind, PickleKind::kInt);
    EXPECT_EQ(tree.root().integer, value);
  }
}

TEST(PickleTest, LargestUnsignedComesBack) {
  PickleWriter out;
  out.UInt(std::numeric_limits<uint64_t>::max());
  const std::string bytes = out.Finish();
  const PickleTree tree = ReadPickle(bytes, {}, "it");
  EXPECT_EQ(tree.root().kind, PickleKind::kUInt);
  EXPECT_EQ(static_cast<uint64_t>(tree.root().integer), std::numeric_limits<uint64_t>::max());
}

TEST(PickleTest, UnknownGlobalIsRefusedByName) {
  const std::string attack =
      "\x80\x02"
      "cos\nsystem\nX\x02\0\0\0id\x85R.";
  EXPECT_THAT(Refusal(attack), HasSubstr("os.system"));
}

TEST(PickleTest, UnknownStackGlobalIsRefusedByName) {
  const std::string attack =
      Bytes({0x80, 4, 0x8c, 8}) + "builtins" + Bytes({0x8c, 4}) + "eval" + Bytes({0x93, '.'});
  EXPECT_THAT(Refusal(attack), HasSubstr("builtins.eval"));
}

TEST(PickleTest, AllowedGlobalIsOnlyAName) {
  PickleWriter out;
  out.Global("torch", "Size");
  const std::string bytes = out.Finish();
  const PickleTree tree = ReadPickle(bytes, kSize, "it");
  EXPECT_EQ(tree.root().kind, PickleKind::kGlobal);
  EXPECT_EQ(tree.root().name, "Size");
}

TEST(PickleTest, GiantStringIsRefusedWithoutAllocating) {
  EXPECT_THAT(Refusal(Bytes({0x80, 4, 0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})),
              HasSubstr("string of"));
}

TEST(PickleTest, GiantMemoIndexIsRefused) {
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 'N', 'r', 0xff, 0xff, 0xff, 0xff, '.'})),
              HasSubstr("memo index 4294967295"));
}

TEST(PickleTest, GiantFrameIsRefused) {
  EXPECT_THAT(Refusal(Bytes({0x80, 4, 0x95, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '.'})),
              HasSubstr("ends too early"));
}

TEST(PickleTest, StackUnderflowIsRefused) {
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 'N', '(', 0x85, '.'})), HasSubstr("empty stack"));
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 't', '.'})), HasSubstr("mark"));
}

TEST(PickleTest, OtherOpcodesAndProtocolsAreRefused) {
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 'i', '.'})), HasSubstr("opcode 105"));
  EXPECT_THAT(Refusal(Bytes({0x80, 6, 'N', '.'})), HasSubstr("protocol 6"));
  EXPECT_THAT(Refusal(Bytes({'N', '.'})), HasSubstr("protocol number"));
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 'N', '.', 'N'})), HasSubstr("after its end"));
}

TEST(PickleTest, IntegerOfMoreThan64BitsIsRefused) {
  EXPECT_THAT(Refusal(Bytes({0x80, 2, 0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, '.'})),
              HasSubstr("64 bits"));
}

TEST(PickleTest, ListThatContainsItselfIsRead) {
  const std::string cycle = Bytes({0x80, 2, ']', 'q', 0, 'h', 0, 'a', '.'});
  const PickleTree tree = ReadPickle(cycle, {}, "it");
  EXPECT_EQ(&tree.item(tree.root(), 0), &tree.root());
}

}  // namespace
}  // namespace fsdprun::worker::checkpoint
