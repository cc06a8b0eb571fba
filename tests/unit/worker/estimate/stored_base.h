#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "formats/json/strict_json.h"
#include "formats/models/model_config.h"

namespace fsdprun::worker {

/// Writes weights of the model, all zeros, into a file .safetensors. `dtype`: "F32" or "BF16".
inline void WriteZeros(const ModelConfig& model, const std::string& dtype,
                       const std::string& path) {
  Json header = Json::object();
  int64_t end = 0;
  for (const WeightShape& weight : model.weights) {
    int64_t bytes = dtype == "F32" ? 4 : 2;
    for (const int64_t size : weight.shape) {
      bytes *= size;
    }
    header[weight.name] = {
        {"dtype", dtype}, {"shape", weight.shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&length), sizeof length)
      << text << std::string(static_cast<size_t>(end), '\0');
}

}  // namespace fsdprun::worker
