#include "formats/tokens/token_bin_writer.h"

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr size_t kWriteBytes = size_t{1} << 20;

}  // namespace

TokenBinWriter::TokenBinWriter(const std::string& path, TokenDtype dtype, int64_t header_bytes,
                               Existing existing)
    : file_(path, kUnknownSize, existing),
      dtype_(dtype),
      largest_id_(LargestTokenId(dtype)),
      offset_(header_bytes) {
  buffer_.reserve(kWriteBytes);
}

void TokenBinWriter::AppendOne(uint32_t id) {
  if (int64_t{id} > largest_id_) {
    throw fsdp::archive::Error("cannot write the id " + std::to_string(id) + " to " + file_.path() +
                               ": " + std::string(TokenDtypeName(dtype_)) + " holds at most " +
                               std::to_string(largest_id_));
  }
  const auto bytes = static_cast<int>(TokenBytes(dtype_));
  for (int i = 0; i < bytes; ++i) {
    buffer_.push_back(i < 4 ? static_cast<uint8_t>(id >> (8 * i)) : uint8_t{0});
  }
}

void TokenBinWriter::Append(const uint32_t* ids, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    AppendOne(ids[i]);
    if (buffer_.size() >= kWriteBytes) {
      Flush();
    }
  }
  tokens_ += static_cast<int64_t>(count);
}

void TokenBinWriter::Flush() {
  file_.Write(offset_, buffer_.data(), static_cast<int64_t>(buffer_.size()));
  offset_ += static_cast<int64_t>(buffer_.size());
  buffer_.clear();
}

void TokenBinWriter::Finish() {
  Flush();
  std::vector<uint8_t>().swap(buffer_);
  file_.Finish();
}

}  // namespace fsdprun
