#include "agent/store/store_protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace fsdprun {
namespace {

template <class Integer>
std::string Int(Integer value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof(value));
}
std::string Op(StoreOp op) { return Int(static_cast<uint8_t>(op)); }
std::string Text(const std::string& text) { return Int(uint64_t{text.size()}) + text; }

StoreParse Parse(const std::string& bytes, StoreRequest& request,
                 const StoreRequestLimits& limits = {}) {
  size_t consumed = 0;
  size_t needed = 0;
  const StoreParse parse = ParseStoreRequest(bytes, limits, request, consumed, needed);
  if (parse == StoreParse::kComplete) {
    EXPECT_LE(consumed, bytes.size());
  } else if (parse == StoreParse::kIncomplete) {
    EXPECT_GT(needed, bytes.size());
  }
  return parse;
}

std::vector<std::string> AllRequests() {
  return {
      Op(StoreOp::kValidate) + Int(kStoreValidationWord),
      Op(StoreOp::kSet) + Text("/k") + Text("v"),
      Op(StoreOp::kCompareSet) + Text("/k") + Text("v") + Text("w"),
      Op(StoreOp::kGet) + Text("/k"),
      Op(StoreOp::kAdd) + Text("/k") + Int(int64_t{-3}),
      Op(StoreOp::kWait) + Int(uint64_t{2}) + Text("/a") + Text("/b"),
      Op(StoreOp::kMultiSet) + Int(uint64_t{2}) + Text("/a") + Text("1") + Text("/b") + Text("2"),
      Op(StoreOp::kKeyCount),
      Op(StoreOp::kQueuePush) + Text("/q") + Text(""),
      Op(StoreOp::kListKeys)};
}

TEST(StoreProtocolTest, CompleteOnlyWithTheLastByte) {
  for (const std::string& bytes : AllRequests()) {
    StoreRequest request;
    for (size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_EQ(Parse(bytes.substr(0, size), request), StoreParse::kIncomplete);
    }
    EXPECT_EQ(Parse(bytes + "next", request), StoreParse::kComplete);
    EXPECT_EQ(static_cast<uint8_t>(request.op), static_cast<uint8_t>(bytes[0]));
  }
}

TEST(StoreProtocolTest, FieldsArriveInOrder) {
  StoreRequest request;
  ASSERT_EQ(Parse(AllRequests()[6], request), StoreParse::kComplete);
  EXPECT_EQ(request.keys, (std::vector<std::string>{"/a", "/b"}));
  EXPECT_EQ(request.values, (std::vector<std::string>{"1", "2"}));
  ASSERT_EQ(Parse(AllRequests()[4], request), StoreParse::kComplete);
  EXPECT_EQ(request.number, -3);
}

TEST(StoreProtocolTest, LimitsAreCheckedBeforeTheBytesArrive) {
  StoreRequest request;
  const StoreRequestLimits limits{
      .max_key_bytes = 8, .max_value_bytes = 16, .max_keys = 2, .max_request_bytes = 40};
  EXPECT_EQ(Parse(Op(StoreOp::kGet) + Int(uint64_t{9}), request, limits), StoreParse::kInvalid);
  EXPECT_EQ(Parse(Op(StoreOp::kGet) + Int(~uint64_t{0}), request, limits), StoreParse::kInvalid);
  EXPECT_EQ(Parse(Op(StoreOp::kSet) + Text("/k") + Int(uint64_t{17}), request, limits),
            StoreParse::kInvalid);
  EXPECT_EQ(Parse(Op(StoreOp::kWait) + Int(uint64_t{3}), request, limits), StoreParse::kInvalid);
  EXPECT_EQ(
      Parse(Op(StoreOp::kCompareSet) + Text("/k") + Text(std::string(16, 'x')) + Int(uint64_t{16}),
            request, limits),
      StoreParse::kInvalid);
  EXPECT_EQ(Parse("\x40", request), StoreParse::kInvalid);
}

TEST(StoreProtocolTest, RandomBytesNeverCrash) {
  std::mt19937 random(7);
  const std::vector<std::string> seeds = AllRequests();
  for (int round = 0; round < 100'000; ++round) {
    std::string bytes = seeds[random() % seeds.size()];
    for (int i = 0; i < 3; ++i) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    StoreRequest request;
    Parse(bytes, request);
  }
}

}  // namespace
}  // namespace fsdprun
