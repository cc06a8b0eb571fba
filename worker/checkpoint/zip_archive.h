#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdprun::worker::checkpoint {

class BlobSource;

/// Builds a zip of stored records around one large record that the caller writes.
class ZipWriter {
 public:
  /// A record whose bytes are given.
  void Add(std::string_view name, std::string_view bytes);
  /// The header of a record of which only length and CRC are known, padded so that its data begin
  /// at a multiple of `alignment`. The caller writes the data after TakePrefix's result.
  void AddExternal(std::string_view name, uint32_t byte_count, uint32_t crc32, size_t alignment);
  /// Everything before the external data; records added later follow that data.
  std::string TakePrefix();
  /// Adds the directory and returns all bytes since TakePrefix.
  std::string Finish();

 private:
  struct Record {
    std::string name;
    uint32_t crc32 = 0;
    uint32_t byte_count = 0;
    uint32_t header_offset = 0;
  };
  void Header(const Record& record, size_t padding);

  std::string out_;
  uint32_t taken_ = 0;  // bytes that precede out_ in the archive
  std::vector<Record> records_;
};

struct ZipRecord {
  int64_t data_offset = 0;
  int64_t byte_count = 0;
  uint32_t crc32 = 0;  // 0: perhaps not computed; torch.save has an option for that
};

/// The records of a zip (Zip64 included) by name without the leading folder ("data.pkl").
/// Errors: CheckpointError, starting with `what`, on compressed or encrypted records, on duplicate
/// names, and on anything that points outside of the archive.
std::map<std::string, ZipRecord> ReadZip(const BlobSource& source, const std::string& what);

/// Reads the record and compares it with its CRC-32, unless that is 0.
/// Errors: CheckpointError, starting with `what`.
void CheckCrc(const BlobSource& source, const ZipRecord& record, const std::string& what);

}  // namespace fsdprun::worker::checkpoint
