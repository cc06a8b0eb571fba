#include "formats/tensors/rotary_rows.h"

#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "formats/tensors/joined_tensors.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

using fsdp::archive::Error;

/// One tensor of int16 whose elements are given.
class OneTensor : public TensorSource {
 public:
  OneTensor(const std::string& name, std::vector<int64_t> shape, std::vector<int16_t> elements)
      : elements_(std::move(elements)) {
    tensors_[name] = {"int16", std::move(shape), 1, {}};
  }
  void Read(const std::string& /*name*/, int64_t begin, int64_t count, void* out) override {
    std::copy_n(elements_.begin() + begin, count, static_cast<int16_t*>(out));
  }

 private:
  std::vector<int16_t> elements_;
};

std::vector<int16_t> ReadAll(TensorSource& source, const std::string& name, int64_t count,
                             int64_t piece) {
  std::vector<int16_t> out(static_cast<size_t>(count));
  for (int64_t at = 0; at < count; at += piece) {
    source.Read(name, at, std::min(piece, count - at), out.data() + at);
  }
  return out;
}

TEST(RotaryRowsTest, RowsThatDoNotDivideAreRefused) {
  OneTensor source("q", {6, 1}, std::vector<int16_t>(6));
  for (const int64_t heads : {2, 4, 6}) {
    EXPECT_THROW(RotaryRows(source, {{"q", heads}}, RotaryOrder::kHalves), Error) << heads;
  }
  OneTensor scalar("q", {}, {1});
  EXPECT_THROW(RotaryRows(scalar, {{"q", 1}}, RotaryOrder::kHalves), Error);
}

TEST(RotaryRowsTest, RowsAreReorderedWithinEachHead) {
  // Two heads of four rows of two: the element says the row, ten times, and the column.
  OneTensor source("q", {8, 2}, {0, 1, 10, 11, 20, 21, 30, 31, 40, 41, 50, 51, 60, 61, 70, 71});
  const std::vector<int16_t> interleaved = {0,  1,  20, 21, 10, 11, 30, 31,
                                            40, 41, 60, 61, 50, 51, 70, 71};
  RotaryRows there(source, {{"q", 2}}, RotaryOrder::kInterleaved);
  RotaryRows back(there, {{"q", 2}}, RotaryOrder::kHalves);
  for (const int64_t piece : {1, 3, 5, 16}) {
    EXPECT_EQ(ReadAll(there, "q", 16, piece), interleaved) << piece;
    EXPECT_EQ(ReadAll(back, "q", 16, piece), ReadAll(source, "q", 16, 16)) << piece;
  }
}

TEST(RotaryRowsTest, OfSixRowsThereAndBackAreNotTheSame) {
  OneTensor source("q", {6}, {0, 1, 2, 3, 4, 5});
  RotaryRows there(source, {{"q", 1}}, RotaryOrder::kInterleaved);
  EXPECT_EQ(ReadAll(there, "q", 6, 6), (std::vector<int16_t>{0, 3, 1, 4, 2, 5}));
  RotaryRows halves(source, {{"q", 1}}, RotaryOrder::kHalves);
  EXPECT_EQ(ReadAll(halves, "q", 6, 6), (std::vector<int16_t>{0, 2, 4, 1, 3, 5}));
}

TEST(JoinedTensorsTest, EachIsReadWhereItIs) {
  std::vector<std::unique_ptr<TensorSource>> sources;
  sources.push_back(
      std::make_unique<OneTensor>("a", std::vector<int64_t>{1}, std::vector<int16_t>{7}));
  sources.push_back(
      std::make_unique<OneTensor>("b", std::vector<int64_t>{1}, std::vector<int16_t>{8}));
  JoinedTensors joined(std::move(sources));
  EXPECT_EQ(joined.tensors().size(), 2u);
  EXPECT_EQ(ReadAll(joined, "a", 1, 1).front(), 7);
  EXPECT_EQ(ReadAll(joined, "b", 1, 1).front(), 8);

  std::vector<std::unique_ptr<TensorSource>> twice;
  for (int i = 0; i < 2; ++i) {
    twice.push_back(
        std::make_unique<OneTensor>("a", std::vector<int64_t>{1}, std::vector<int16_t>{7}));
  }
  EXPECT_THROW(JoinedTensors(std::move(twice)), Error);
}

}  // namespace
}  // namespace fsdprun
