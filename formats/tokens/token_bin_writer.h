#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/files/output_file.h"
#include "formats/tokens/token_dtype.h"

namespace fsdprun {

/// Ids one behind the other, behind a header of a fixed size. The file has its name only after
/// file().Publish(). Thread: one. Errors: as OutputFile's.
class TokenBinWriter {
 public:
  TokenBinWriter(const std::string& path, TokenDtype dtype, int64_t header_bytes,
                 Existing existing);

  /// Errors: fsdp::archive::Error, also for an id that the dtype does not hold.
  void Append(const uint32_t* ids, size_t count);
  /// Writes what is still in memory.
  void Flush();
  /// Writes what is still in memory, and finishes the file: it uses neither memory nor a descriptor
  /// from then on.
  void Finish();
  int64_t tokens() const { return tokens_; }
  OutputFile& file() { return file_; }

 private:
  void AppendOne(uint32_t id);

  OutputFile file_;
  TokenDtype dtype_;
  int64_t largest_id_;
  int64_t offset_;
  int64_t tokens_ = 0;
  std::vector<uint8_t> buffer_;
};

}  // namespace fsdprun
