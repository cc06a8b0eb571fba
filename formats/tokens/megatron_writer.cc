#include "formats/tokens/megatron_writer.h"

#include <string_view>

#include "fsdp_runtime/archive/error.h"

namespace fsdprun {
namespace {

constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
constexpr int64_t kIndexHeadBytes = 9 + 8 + 1 + 8 + 8;
constexpr size_t kIndexBufferBytes = size_t{1} << 20;

uint8_t MegatronDtypeCode(TokenDtype dtype) {
  switch (dtype) {
    case TokenDtype::kUint8:
      return 1;
    case TokenDtype::kInt8:
      return 2;
    case TokenDtype::kInt16:
      return 3;
    case TokenDtype::kInt32:
      return 4;
    case TokenDtype::kInt64:
      return 5;
    case TokenDtype::kUint16:
      return 8;
    case TokenDtype::kUint32:
      break;
  }
  throw fsdp::archive::Error("cannot write an index of Megatron-LM for ids of type " +
                             std::string(TokenDtypeName(dtype)) + ", which it does not have");
}

/// Writes numbers from the start of a file on.
class IndexStream {
 public:
  explicit IndexStream(OutputFile& file) : file_(file) {}

  void Put(std::string_view bytes) {
    buffer_ += bytes;
    if (buffer_.size() >= kIndexBufferBytes) {
      Flush();
    }
  }
  void PutNumber(uint64_t value, int byte_count) {
    char bytes[8];
    for (int i = 0; i < byte_count; ++i) {
      bytes[i] = static_cast<char>(value >> (8 * i));
    }
    Put({bytes, static_cast<size_t>(byte_count)});
  }
  void Flush() {
    file_.Write(offset_, buffer_);
    offset_ += static_cast<int64_t>(buffer_.size());
    buffer_.clear();
  }

 private:
  OutputFile& file_;
  std::string buffer_;
  int64_t offset_ = 0;
};

}  // namespace

int64_t MegatronIndexBytes(int64_t documents) {
  return kIndexHeadBytes + documents * (4 + 8) + (documents + 1) * 8;
}

void WriteMegatronIndex(const std::vector<int32_t>& lengths, TokenDtype dtype, OutputFile& file) {
  const uint8_t code = MegatronDtypeCode(dtype);
  IndexStream out(file);
  out.Put(kIndexMagic);
  out.PutNumber(1, 8);
  out.PutNumber(code, 1);
  out.PutNumber(lengths.size(), 8);
  out.PutNumber(lengths.size() + 1, 8);
  for (const int32_t length : lengths) {
    out.PutNumber(static_cast<uint32_t>(length), 4);
  }
  uint64_t begin = 0;
  for (const int32_t length : lengths) {
    out.PutNumber(begin, 8);
    begin += static_cast<uint64_t>(length) * static_cast<uint64_t>(TokenBytes(dtype));
  }
  for (uint64_t document = 0; document <= lengths.size(); ++document) {
    out.PutNumber(document, 8);
  }
  out.Flush();
}

}  // namespace fsdprun
