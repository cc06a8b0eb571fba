#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/tensors/cast.h"
#include "formats/tensors/dtype_names.h"
#include "formats/tensors/tensor_source.h"

namespace fsdprun {

/// Tensors in memory, whose elements are given as float32.
class MemoryTensors : public TensorSource {
 public:
  void Add(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values,
           const std::string& dtype = "float32") {
    tensors_[name] = {dtype, std::move(shape), 1, {}};
    std::vector<char>& bytes = bytes_[name];
    bytes.resize(values.size() * static_cast<size_t>(ElementBytes(dtype, name)));
    CastElements("float32", values.data(), dtype, bytes.data(),
                 static_cast<int64_t>(values.size()));
  }
  void Read(const std::string& name, int64_t begin, int64_t count, void* out) override {
    const int64_t size = ElementBytes(tensors_.at(name).dtype, name);
    std::copy_n(bytes_.at(name).begin() + begin * size, count * size, static_cast<char*>(out));
  }

 private:
  std::map<std::string, std::vector<char>> bytes_;
};

/// All elements, in pieces of `piece`, as float32.
inline std::vector<float> ReadFloats(TensorSource& source, const std::string& name, int64_t count,
                                     int64_t piece) {
  const std::string& dtype = source.tensors().at(name).dtype;
  const int64_t size = ElementBytes(dtype, name);
  std::vector<char> bytes(static_cast<size_t>(count * size));
  for (int64_t at = 0; at < count; at += piece) {
    source.Read(name, at, std::min(piece, count - at), bytes.data() + at * size);
  }
  std::vector<float> values(static_cast<size_t>(count));
  CastElements(dtype, bytes.data(), "float32", values.data(), count);
  return values;
}

}  // namespace fsdprun
