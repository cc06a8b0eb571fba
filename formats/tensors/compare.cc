#include "formats/tensors/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/tensors/cast.h"
#include "formats/tensors/dtype_names.h"
#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr int64_t kPieceBytes = int64_t{16} << 20;

bool IsNumeric(const std::string& dtype) {
  return IsCastable(dtype) || dtype == "bool" || dtype == "uint8" || dtype == "int8" ||
         dtype == "int16" || dtype == "int32" || dtype == "int64";
}

double Difference(const std::string& dtype, const char* a, const char* b) {
  if (!IsNumeric(dtype)) {
    return std::numeric_limits<double>::infinity();
  }
  const double x = ElementValue(dtype, a);
  const double y = ElementValue(dtype, b);
  if (std::isnan(x) && std::isnan(y)) {
    return 0;
  }
  const double difference = std::abs(x - y);
  return std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
}

}  // namespace

int64_t PieceElements(int64_t element_bytes) { return kPieceBytes / element_bytes; }

int64_t ElementCount(const TensorFacts& facts, const std::string& name) {
  int64_t count = 1;
  bool is_empty = false;
  for (const int64_t size : facts.shape) {
    is_empty = is_empty || size == 0;
    if (__builtin_mul_overflow(count, std::max<int64_t>(size, 1), &count)) {
      throw fsdp::archive::Error("the shape of " + name + " is impossible");
    }
  }
  return is_empty ? 0 : count;
}

void AddTensorBytes(const TensorFacts& facts, std::string_view dtype, const std::string& name,
                    int64_t& total) {
  int64_t bytes = 0;
  if (__builtin_mul_overflow(ElementCount(facts, name), ElementBytes(dtype, name), &bytes) ||
      __builtin_add_overflow(total, bytes, &total)) {
    throw fsdp::archive::Error("the tensors up to " + name +
                               " have more than 2^63 bytes: the file that says so is damaged");
  }
}

ValueDifference CompareTensors(TensorSource& a, const std::string& a_name, TensorSource& b,
                               const std::string& b_name) {
  const TensorFacts& facts = a.tensors().at(a_name);
  const int64_t bytes = ElementBytes(facts.dtype, a_name);
  const int64_t total = ElementCount(facts, a_name);
  const int64_t piece = std::min(total, PieceElements(bytes));
  std::vector<char> a_data(static_cast<size_t>(piece * bytes));
  std::vector<char> b_data(a_data.size());
  ValueDifference result;
  for (int64_t begin = 0; begin < total; begin += piece) {
    const int64_t count = std::min(piece, total - begin);
    a.Read(a_name, begin, count, a_data.data());
    b.Read(b_name, begin, count, b_data.data());
    if (std::memcmp(a_data.data(), b_data.data(), static_cast<size_t>(count * bytes)) == 0) {
      continue;
    }
    for (int64_t i = 0; i < count; ++i) {
      const char* x = a_data.data() + i * bytes;
      const char* y = b_data.data() + i * bytes;
      if (std::memcmp(x, y, static_cast<size_t>(bytes)) != 0) {
        ++result.different;
        result.max_difference = std::max(result.max_difference, Difference(facts.dtype, x, y));
      }
    }
  }
  return result;
}

}  // namespace fsdprun
