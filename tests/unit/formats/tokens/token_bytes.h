#pragma once

#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "formats/json/strict_json.h"
#include "fsdp_runtime/archive/zip_archive.h"

namespace fsdprun {

/// Bytes in memory.
class BytesSource : public fsdp::archive::ByteSource {
 public:
  explicit BytesSource(std::string bytes) : bytes_(std::move(bytes)) {}
  int64_t size() const override { return static_cast<int64_t>(bytes_.size()); }
  void read(int64_t offset, void* out, int64_t byte_count) const override {
    if (offset < 0 || byte_count < 0 || offset > size() - byte_count) {
      throw std::out_of_range("read outside of the file");
    }
    std::memcpy(out, bytes_.data() + offset, static_cast<size_t>(byte_count));
  }

 private:
  const std::string bytes_;
};

/// The number as it is stored in files.
template <class Number>
std::string Stored(Number number) {
  std::string bytes(sizeof number, '\0');
  std::memcpy(bytes.data(), &number, sizeof number);
  return bytes;
}

template <class Number>
std::string StoredList(const std::vector<Number>& numbers) {
  std::string bytes;
  for (const Number number : numbers) {
    bytes += Stored(number);
  }
  return bytes;
}

/// What ConfigError says that `act` throws; "accepted" if it throws none.
template <class Act>
std::string RefusalOf(Act&& act) {
  try {
    act();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

/// A token file of llm.c.
inline std::string LlmcFile(const std::vector<uint16_t>& tokens) {
  std::string bytes = StoredList<int32_t>({20240520, 1, static_cast<int32_t>(tokens.size())});
  bytes.resize(1024, '\0');
  return bytes + StoredList(tokens);
}

inline std::string LlmcFile32(const std::vector<uint32_t>& tokens) {
  std::string bytes = StoredList<int32_t>({20240801, 7, static_cast<int32_t>(tokens.size())});
  bytes.resize(1024, '\0');
  return bytes + StoredList(tokens);
}

/// An index of Megatron-LM's over sequences of these lengths; `documents`: the sequences with which
/// documents begin, and how many sequences there are.
inline std::string MegatronIndexFile(uint8_t dtype_code, int64_t token_bytes,
                                     const std::vector<int32_t>& lengths,
                                     const std::vector<int64_t>& documents) {
  std::string bytes("MMIDIDX\0\0", 9);
  bytes += Stored<uint64_t>(1) + Stored(dtype_code) + Stored<uint64_t>(lengths.size()) +
           Stored<uint64_t>(documents.size()) + StoredList(lengths);
  int64_t pointer = 0;
  for (const int32_t length : lengths) {
    bytes += Stored(pointer);
    pointer += length * token_bytes;
  }
  return bytes + StoredList(documents);
}

}  // namespace fsdprun
