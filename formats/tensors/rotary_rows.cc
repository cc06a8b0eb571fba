#include "formats/tensors/rotary_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/tensors/compare.h"
#include "formats/tensors/dtype_names.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

/// Where the row `row` of a head of `rows` rows in order `to` is in the other order.
int64_t SourceRow(int64_t row, int64_t rows, RotaryOrder to) {
  const int64_t half = rows / 2;
  return to == RotaryOrder::kInterleaved ? row % 2 * half + row / 2 : row % half * 2 + row / half;
}

}  // namespace

RotaryRows::RotaryRows(TensorSource& source, std::map<std::string, int64_t> heads, RotaryOrder to)
    : source_(source), heads_(std::move(heads)), to_(to) {
  tensors_ = source.tensors();
  for (const auto& [name, count] : heads_) {
    const std::vector<int64_t>& shape = tensors_.at(name).shape;
    if (shape.empty() || shape.front() == 0 || shape.front() % (2 * count) != 0) {
      throw fsdp::archive::Error(
          "cannot reorder the rows of " + name + ": its " +
          std::to_string(shape.empty() ? 0 : shape.front()) + " rows are not those of " +
          std::to_string(count) +
          " heads of an even size; is the configuration that of this model?");
    }
  }
}

void RotaryRows::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  const auto found = heads_.find(name);
  if (found == heads_.end()) {
    source_.Read(name, begin, count, out);
    return;
  }
  const TensorFacts& facts = tensors_.at(name);
  const int64_t bytes = ElementBytes(facts.dtype, name);
  const int64_t rows = facts.shape.front() / found->second;  // of a head
  const int64_t width = ElementCount(facts, name) / facts.shape.front();
  head_.resize(static_cast<size_t>(rows * width * bytes));
  auto* next = static_cast<char*>(out);
  const int64_t end = begin + count;
  for (int64_t at = begin; at < end;) {
    const int64_t head = at / (rows * width) * (rows * width);
    source_.Read(name, head, rows * width, head_.data());
    for (const int64_t head_end = std::min(end, head + rows * width); at < head_end;) {
      const int64_t row = (at - head) / width;
      const int64_t column = (at - head) % width;
      const int64_t run = std::min(width - column, head_end - at);
      std::memcpy(next, head_.data() + (SourceRow(row, rows, to_) * width + column) * bytes,
                  static_cast<size_t>(run * bytes));
      next += run * bytes;
      at += run;
    }
  }
}

}  // namespace fsdprun
