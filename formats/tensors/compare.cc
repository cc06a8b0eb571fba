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
  bool fits = true;
  for (const int64_t size : facts.shape) {
    if (size == 0) {
      return 0;
    }
    fits = fits && !__builtin_mul_overflow(count, size, &count);
  }
  if (!fits) {
    throw fsdp::archive::Error("the shape of " + name + " is impossible");
  }
  return count;
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
