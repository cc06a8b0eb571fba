#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>

#include "fsdp_runtime/archive/error.h"
#include "fsdp_runtime/archive/pickle_reader.h"
#include "fsdp_runtime/archive/pickle_writer.h"

namespace fsdp::archive {
namespace {

using ::testing::HasSubstr;

constexpr PickleGlobal kSize[] = {{"torch", "Size"}};

std::string pickle_refusal(const std::string& bytes) {
  try {
    read_pickle(bytes, kSize, "the file");
  } catch (const Error& error) {
    return error.what();
  }
  ADD_FAILURE() << "expected an exception";
  return {};
}

std::string bytes_of(std::initializer_list<int> values) {
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
    out.integer(value);
    const std::string bytes = out.finish();
    const PickleTree tree = read_pickle(bytes, {}, "it");
    EXPECT_EQ(tree.root().kind, PickleKind::kInt);
    EXPECT_EQ(tree.root().integer, value);
  }
}

TEST(PickleTest, LargestUnsignedComesBack) {
  PickleWriter out;
  out.unsigned_integer(std::numeric_limits<uint64_t>::max());
  const std::string bytes = out.finish();
  const PickleTree tree = read_pickle(bytes, {}, "it");
  EXPECT_EQ(tree.root().kind, PickleKind::kUInt);
  EXPECT_EQ(static_cast<uint64_t>(tree.root().integer), std::numeric_limits<uint64_t>::max());
}

TEST(PickleTest, UnknownGlobalIsRefusedByName) {
  const std::string attack =
      "\x80\x02"
      "cos\nsystem\nX\x02\0\0\0id\x85R.";
  EXPECT_THAT(pickle_refusal(attack), HasSubstr("os.system"));
}

TEST(PickleTest, UnknownStackGlobalIsRefusedByName) {
  const std::string attack = bytes_of({0x80, 4, 0x8c, 8}) + "builtins" + bytes_of({0x8c, 4}) +
                             "eval" + bytes_of({0x93, '.'});
  EXPECT_THAT(pickle_refusal(attack), HasSubstr("builtins.eval"));
}

TEST(PickleTest, AllowedGlobalIsOnlyAName) {
  PickleWriter out;
  out.global("torch", "Size");
  const std::string bytes = out.finish();
  const PickleTree tree = read_pickle(bytes, kSize, "it");
  EXPECT_EQ(tree.root().kind, PickleKind::kGlobal);
  EXPECT_EQ(tree.root().name, "Size");
}

TEST(PickleTest, GiantStringIsRefusedWithoutAllocating) {
  EXPECT_THAT(
      pickle_refusal(bytes_of({0x80, 4, 0x8d, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})),
      HasSubstr("string of"));
}

TEST(PickleTest, GiantMemoIndexIsRefused) {
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 'N', 'r', 0xff, 0xff, 0xff, 0xff, '.'})),
              HasSubstr("memo index 4294967295"));
}

TEST(PickleTest, GiantFrameIsRefused) {
  EXPECT_THAT(pickle_refusal(
                  bytes_of({0x80, 4, 0x95, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, '.'})),
              HasSubstr("ends too early"));
}

TEST(PickleTest, StackUnderflowIsRefused) {
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 'N', '(', 0x85, '.'})), HasSubstr("empty stack"));
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 't', '.'})), HasSubstr("mark"));
}

TEST(PickleTest, OtherOpcodesAndProtocolsAreRefused) {
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 'i', '.'})), HasSubstr("opcode 105"));
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 6, 'N', '.'})), HasSubstr("protocol 6"));
  EXPECT_THAT(pickle_refusal(bytes_of({'N', '.'})), HasSubstr("protocol number"));
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 'N', '.', 'N'})), HasSubstr("after its end"));
}

TEST(PickleTest, IntegerOfMoreThan64BitsIsRefused) {
  EXPECT_THAT(pickle_refusal(bytes_of({0x80, 2, 0x8a, 9, 0, 0, 0, 0, 0, 0, 0, 0, 1, '.'})),
              HasSubstr("64 bits"));
}

TEST(PickleTest, AnOrderedDictIsADictAndItsAttributesAreDropped) {
  constexpr PickleGlobal kOrderedDict[] = {{"collections", "OrderedDict"}};
  const std::string bytes = bytes_of({0x80, 2}) + "ccollections\nOrderedDict\n" +
                            bytes_of({')', 'R', 'X', 1, 0, 0,   0,   'x', 'K', 5,   's', '}',
                                      'X', 1,   0,   0, 0, 'm', 'K', 6,   's', 'b', '.'});
  const PickleTree tree = read_pickle(bytes, kOrderedDict, "it");
  ASSERT_EQ(tree.root().kind, PickleKind::kDict);
  ASSERT_EQ(tree.root().items.size(), 2U);
  EXPECT_EQ(tree.item(tree.root(), 1).integer, 5);
}

TEST(PickleTest, DepthCostsNothing) {
  const std::string deep = bytes_of({0x80, 2, 'N'}) + std::string(1000000, '\x85') + '.';
  EXPECT_EQ(read_pickle(deep, {}, "it").size(), 1000001U);
}

TEST(PickleTest, ListThatContainsItselfIsRead) {
  const std::string cycle = bytes_of({0x80, 2, ']', 'q', 0, 'h', 0, 'a', '.'});
  const PickleTree tree = read_pickle(cycle, {}, "it");
  EXPECT_EQ(&tree.item(tree.root(), 0), &tree.root());
}

}  // namespace
}  // namespace fsdp::archive
