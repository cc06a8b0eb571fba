#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace fsdp::archive {

/// Positional reads of one archive.
class ByteSource {
 public:
  virtual ~ByteSource() = default;
  virtual int64_t size() const = 0;
  /// Fills `out` from [offset, offset + byte_count), which lies within the archive, or throws.
  virtual void read(int64_t offset, void* out, int64_t byte_count) const = 0;
};

/// The CRC-32 of zip and zlib, continued from `crc` (0 at the start), of any length.
uint32_t update_crc32(uint32_t crc, const void* data, size_t byte_count);

/// Builds a zip of stored records around one large record that the caller writes.
class ZipWriter {
 public:
  /// A record whose bytes are given.
  void add(std::string_view name, std::string_view bytes);
  /// The header of a record of which only length and CRC are known, padded so that its data begin
  /// at a multiple of `alignment`. The caller writes the data after what take_prefix() returns.
  void add_external(std::string_view name, uint32_t byte_count, uint32_t crc32, size_t alignment);
  /// Everything before the external data; records added later follow that data.
  std::string take_prefix();
  /// Adds the directory and returns all bytes since take_prefix().
  std::string finish();

 private:
  struct Record {
    std::string name;
    uint32_t crc32 = 0;
    uint32_t byte_count = 0;
    uint32_t header_offset = 0;
  };
  void write_header(const Record& record, size_t padding);

  std::string out_;
  uint32_t taken_ = 0;  // bytes that precede out_ in the archive
  std::vector<Record> records_;
};

struct ZipRecord {
  int64_t data_offset = 0;
  int64_t byte_count = 0;
  uint32_t crc32 = 0;  // 0: perhaps not computed; torch.save has an option for that
};

/// The records of a zip (Zip64 included) by name without the leading folder ("data.pkl"). By hand,
/// because LibTorch's reader does not look at checksums, and so that fuzz targets need no LibTorch.
/// Errors: Error, starting with `what`, on compressed or encrypted records, on duplicate names, on
/// records that overlap, and on anything that points outside of the archive.
std::map<std::string, ZipRecord> read_zip(const ByteSource& source, const std::string& what);

/// Reads the record to `out`, of record.byte_count, and compares it with its CRC-32, unless that is
/// 0. Errors: Error, starting with `what`.
void read_record(const ByteSource& source, const ZipRecord& record, void* out,
                 const std::string& what);
/// The same without a result.
void check_crc(const ByteSource& source, const ZipRecord& record, const std::string& what);

}  // namespace fsdp::archive
