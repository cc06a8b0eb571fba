#include "formats/tensors/merged_tensors.h"

#include <algorithm>
#include <utility>

#include "formats/tensors/cast.h"
#include "formats/tensors/compare.h"
#include "formats/tensors/dtype_names.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr char kFloat[] = "float32";

std::vector<float> ReadAsFloat(TensorSource& source, const std::string& name) {
  const TensorFacts& facts = source.tensors().at(name);
  const int64_t count = ElementCount(facts, name);
  std::vector<char> stored(static_cast<size_t>(count * ElementBytes(facts.dtype, name)));
  source.Read(name, 0, count, stored.data());
  std::vector<float> values(static_cast<size_t>(count));
  CastElements(facts.dtype, stored.data(), kFloat, values.data(), count);
  return values;
}

/// `matrix`: [rows, columns] -> [columns, rows].
std::vector<float> Transposed(const std::vector<float>& matrix, int64_t rows, int64_t columns) {
  std::vector<float> result(matrix.size());
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      result[static_cast<size_t>(column * rows + row)] =
          matrix[static_cast<size_t>(row * columns + column)];
    }
  }
  return result;
}

}  // namespace

MergedTensors::MergedTensors(TensorSource& base, TensorSource& adapter_source,
                             std::map<std::string, AdapterNames> adapters,
                             const MergeOptions& options)
    : base_(base),
      adapter_source_(adapter_source),
      adapters_(std::move(adapters)),
      options_(options) {
  tensors_ = base.tensors();
  for (const auto& [name, adapter] : adapters_) {
    Check(name, adapter);
  }
}

void MergedTensors::Check(const std::string& name, const AdapterNames& adapter) const {
  const auto fail = [&](const std::string& what) {
    throw fsdp::archive::Error("cannot merge " + adapter.a + " and " + adapter.b + " with " + name +
                               ": " + what);
  };
  const auto& stored = adapter_source_.tensors();
  const auto a = stored.find(adapter.a), b = stored.find(adapter.b);
  const auto weight = tensors_.find(name);
  if (weight == tensors_.end()) {
    fail("there is no such weight; is it the base of these adapters?");
  }
  if (a == stored.end() || b == stored.end()) {
    fail((a == stored.end() ? adapter.a : adapter.b) + " is missing");
  }
  const std::vector<int64_t>& shape = weight->second.shape;
  const bool are_matrices =
      shape.size() == 2 && a->second.shape.size() == 2 && b->second.shape.size() == 2;
  const size_t out = options_.is_transposed ? 1 : 0;
  if (!are_matrices || b->second.shape[0] != shape[out] || a->second.shape[1] != shape[1 - out] ||
      a->second.shape[0] != b->second.shape[1]) {
    fail("their shapes do not fit together; is it the base of these adapters?");
  }
  for (const std::string& dtype : {weight->second.dtype, a->second.dtype, b->second.dtype}) {
    if (!IsCastable(dtype)) {
      fail("expected float32, float64, float16 or bfloat16, not " + dtype);
    }
  }
}

void MergedTensors::Load(const std::string& name, const AdapterNames& adapter) {
  if (loaded_ == name) {
    return;
  }
  loaded_.clear();
  const std::vector<int64_t>& shape = tensors_.at(name).shape;
  rank_ = adapter_source_.tensors().at(adapter.a).shape[0];
  columns_ = shape[1];
  left_ = ReadAsFloat(adapter_source_, adapter.b);
  right_ = ReadAsFloat(adapter_source_, adapter.a);
  if (options_.is_transposed) {  // (B A)^T = A^T B^T
    std::vector<float> a = Transposed(right_, rank_, shape[0]);
    right_ = Transposed(left_, shape[1], rank_);
    left_ = std::move(a);
  }
  for (float& value : left_) {
    value = static_cast<float>(value * options_.scale);
  }
  loaded_ = name;
}

void MergedTensors::AddProduct(int64_t begin, int64_t count, float* values) const {
  std::vector<float> product;
  for (int64_t at = begin; at < begin + count;) {
    const int64_t row = at / columns_, column = at % columns_;
    const int64_t run = std::min(columns_ - column, begin + count - at);
    product.assign(static_cast<size_t>(run), 0.0F);
    for (int64_t k = 0; k < rank_; ++k) {
      const float factor = left_[static_cast<size_t>(row * rank_ + k)];
      const float* from = right_.data() + k * columns_ + column;
      for (int64_t i = 0; i < run; ++i) {
        product[static_cast<size_t>(i)] += factor * from[i];
      }
    }
    for (int64_t i = 0; i < run; ++i) {
      values[at - begin + i] += product[static_cast<size_t>(i)];
    }
    at += run;
  }
}

void MergedTensors::Read(const std::string& name, int64_t begin, int64_t count, void* out) {
  base_.Read(name, begin, count, out);
  const auto adapter = adapters_.find(name);
  if (adapter == adapters_.end() || count == 0) {
    return;
  }
  Load(name, adapter->second);
  const std::string& dtype = tensors_.at(name).dtype;
  std::vector<float> values(static_cast<size_t>(count));
  CastElements(dtype, out, kFloat, values.data(), count);
  AddProduct(begin, count, values.data());
  CastElements(kFloat, values.data(), dtype, out, count);
}

}  // namespace fsdprun
