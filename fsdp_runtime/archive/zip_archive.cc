#include "fsdp_runtime/archive/zip_archive.h"

#include <libdeflate.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "fsdp_runtime/archive/error.h"

namespace fsdp::archive {
namespace {

constexpr uint32_t kLocalSignature = 0x04034b50;
constexpr uint32_t kCentralSignature = 0x02014b50;
constexpr uint32_t kEndSignature = 0x06054b50;
constexpr uint32_t kEnd64Signature = 0x06064b50;
constexpr uint32_t kLocator64Signature = 0x07064b50;
constexpr int64_t kLocalBytes = 30;
constexpr int64_t kCentralBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
constexpr uint16_t kUtf8Flag = 0x0800;
constexpr uint16_t kEncryptedFlag = 0x0001;
constexpr uint16_t kDosDate = 0x0021;       // 1 January 1980: the bytes depend on the data alone
constexpr uint16_t kPaddingField = 0x4246;  // "FB", as torch pads
constexpr int64_t kDirectoryBytesMax = int64_t{16} << 20;
constexpr int64_t kPieceBytes = int64_t{1} << 20;

void put16(std::string& out, uint32_t value) {
  out += static_cast<char>(value);
  out += static_cast<char>(value >> 8);
}

void put32(std::string& out, uint32_t value) {
  put16(out, value & 0xffff);
  put16(out, value >> 16);
}

uint64_t get(std::string_view bytes, size_t offset, int byte_count) {
  uint64_t value = 0;
  for (int i = 0; i < byte_count; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[offset + static_cast<size_t>(i)]))
             << (8 * i);
  }
  return value;
}

/// The fields that a local header and a directory entry share.
void put_common(std::string& out, uint32_t crc32, uint32_t byte_count, size_t name_bytes,
                size_t extra_bytes) {
  put16(out, 0);  // version needed
  put16(out, kUtf8Flag);
  put16(out, 0);  // stored
  put16(out, 0);  // time
  put16(out, kDosDate);
  put32(out, crc32);
  put32(out, byte_count);
  put32(out, byte_count);
  put16(out, static_cast<uint32_t>(name_bytes));
  put16(out, static_cast<uint32_t>(extra_bytes));
}

class ZipReader {
 public:
  ZipReader(const ByteSource& source, const std::string& what) : source_(source), what_(what) {}

  std::map<std::string, ZipRecord> run() {
    find_directory();
    std::string directory = bytes_at(directory_offset_, directory_bytes_);
    std::map<std::string, ZipRecord> records;
    size_t position = 0;
    for (uint64_t i = 0; i < record_count_; ++i) {
      auto [name, record] = read_entry(directory, position);
      const size_t slash = name.find('/');
      if (!records.emplace(name.substr(slash == std::string::npos ? 0 : slash + 1), record)
               .second) {
        fail("has the record " + name + " twice");
      }
    }
    check_disjoint();
    return records;
  }

 private:
  [[noreturn]] void fail(const std::string& problem) const {
    throw Error(what_ + ": the archive " + problem);
  }

  /// What a small archive has is small, however often its directory names it.
  void check_disjoint() {
    std::sort(extents_.begin(), extents_.end());
    for (size_t i = 1; i < extents_.size(); ++i) {
      if (extents_[i].first < extents_[i - 1].second) {
        fail("has records that overlap");
      }
    }
  }

  std::string bytes_at(int64_t offset, int64_t byte_count) const {
    if (offset < 0 || byte_count < 0 || offset > source_.size() ||
        byte_count > source_.size() - offset) {
      fail("points outside of itself");
    }
    std::string bytes(static_cast<size_t>(byte_count), '\0');
    source_.read(offset, bytes.data(), byte_count);
    return bytes;
  }

  void find_directory() {
    if (source_.size() < kEndBytes) {
      fail("is too short (" + std::to_string(source_.size()) + " bytes)");
    }
    // torch writes no archive comment, so the end record is the last thing there is.
    const int64_t end_offset = source_.size() - kEndBytes;
    const std::string end = bytes_at(end_offset, kEndBytes);
    if (get(end, 0, 4) != kEndSignature) {
      fail("has no end record: it is truncated or overwritten");
    }
    record_count_ = get(end, 10, 2);
    directory_bytes_ = static_cast<int64_t>(get(end, 12, 4));
    directory_offset_ = static_cast<int64_t>(get(end, 16, 4));
    if (end_offset >= kLocator64Bytes) {
      const std::string locator = bytes_at(end_offset - kLocator64Bytes, kLocator64Bytes);
      if (get(locator, 0, 4) == kLocator64Signature) {
        const std::string end64 = bytes_at(static_cast<int64_t>(get(locator, 8, 8)), kEnd64Bytes);
        if (get(end64, 0, 4) != kEnd64Signature) {
          fail("has a damaged Zip64 end record");
        }
        record_count_ = get(end64, 32, 8);
        directory_bytes_ = static_cast<int64_t>(get(end64, 40, 8));
        directory_offset_ = static_cast<int64_t>(get(end64, 48, 8));
      }
    }
    if (directory_bytes_ > kDirectoryBytesMax) {
      fail("has a directory over the bound of " + std::to_string(kDirectoryBytesMax) + " bytes");
    }
  }

  std::pair<std::string, ZipRecord> read_entry(std::string_view directory, size_t& position) {
    if (directory.size() - position < kCentralBytes ||
        get(directory, position, 4) != kCentralSignature) {
      fail("has a damaged directory");
    }
    const std::string_view entry = directory.substr(position);
    const uint64_t name_bytes = get(entry, 28, 2);
    const uint64_t extra_bytes = get(entry, 30, 2);
    const uint64_t comment_bytes = get(entry, 32, 2);
    const uint64_t entry_bytes = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (entry.size() < entry_bytes) {
      fail("has a damaged directory");
    }
    position += entry_bytes;
    std::string name(entry.substr(kCentralBytes, name_bytes));
    if (get(entry, 10, 2) != 0 || (get(entry, 8, 2) & kEncryptedFlag) != 0) {
      fail("has the compressed or encrypted record " + name + "; only stored ones are read");
    }
    uint64_t sizes[3] = {get(entry, 24, 4), get(entry, 20, 4), get(entry, 42, 4)};
    read_zip64_field(entry.substr(kCentralBytes + name_bytes, extra_bytes), sizes);
    if (sizes[0] != sizes[1]) {
      fail("has the compressed record " + name + "; only stored ones are read");
    }
    ZipRecord record = locate(sizes[2], sizes[0]);
    record.crc32 = static_cast<uint32_t>(get(entry, 16, 4));
    return {std::move(name), record};
  }

  /// Replaces those of uncompressed size, compressed size, header offset that are all ones.
  void read_zip64_field(std::string_view extra, uint64_t (&values)[3]) const {
    while (extra.size() >= 4) {
      const uint64_t field_bytes = get(extra, 2, 2);
      if (field_bytes > extra.size() - 4) {
        return;
      }
      if (get(extra, 0, 2) == 1) {
        std::string_view field = extra.substr(4, field_bytes);
        for (uint64_t& value : values) {
          if (value == 0xffffffff && field.size() >= 8) {
            value = get(field, 0, 8);
            field.remove_prefix(8);
          }
        }
      }
      extra.remove_prefix(4 + field_bytes);
    }
  }

  ZipRecord locate(uint64_t header_offset, uint64_t byte_count) {
    const auto limit = static_cast<uint64_t>(source_.size());
    if (header_offset > limit || byte_count > limit) {
      fail("points outside of itself");
    }
    const std::string header = bytes_at(static_cast<int64_t>(header_offset), kLocalBytes);
    if (get(header, 0, 4) != kLocalSignature || get(header, 8, 2) != 0) {
      fail("has a damaged record header");
    }
    const uint64_t data_offset = header_offset + static_cast<uint64_t>(kLocalBytes) +
                                 get(header, 26, 2) + get(header, 28, 2);
    if (data_offset > limit || byte_count > limit - data_offset) {
      fail("points outside of itself");
    }
    extents_.emplace_back(header_offset, data_offset + byte_count);
    return {static_cast<int64_t>(data_offset), static_cast<int64_t>(byte_count), 0};
  }

  const ByteSource& source_;
  const std::string& what_;
  uint64_t record_count_ = 0;
  int64_t directory_offset_ = 0;
  int64_t directory_bytes_ = 0;
  std::vector<std::pair<uint64_t, uint64_t>> extents_;  // of records with their headers
};

/// Reads the record, piece by piece while its bytes are in the cache, to `out`, or nowhere if that
/// is null.
void compare_crc(const ByteSource& source, const ZipRecord& record, char* out,
                 const std::string& what) {
  const int64_t piece_bytes = std::min(record.byte_count, kPieceBytes);
  std::string buffer(out == nullptr ? static_cast<size_t>(piece_bytes) : 0, '\0');
  uint32_t crc = 0;
  for (int64_t done = 0; done < record.byte_count;) {
    const int64_t count = std::min(record.byte_count - done, piece_bytes);
    char* piece = out == nullptr ? buffer.data() : out + done;
    source.read(record.data_offset + done, piece, count);
    crc = update_crc32(crc, piece, static_cast<size_t>(count));
    done += count;
  }
  if (record.crc32 != 0 && crc != record.crc32) {
    throw Error(what + " is damaged: its CRC-32 does not match");
  }
}

}  // namespace

uint32_t update_crc32(uint32_t crc, const void* data, size_t byte_count) {
  return libdeflate_crc32(crc, data, byte_count);
}

void ZipWriter::write_header(const Record& record, size_t padding) {
  put32(out_, kLocalSignature);
  put_common(out_, record.crc32, record.byte_count, record.name.size(), padding);
  out_ += record.name;
  if (padding > 0) {
    put16(out_, kPaddingField);
    put16(out_, static_cast<uint32_t>(padding - 4));
    out_.append(padding - 4, 'Z');
  }
}

void ZipWriter::add(std::string_view name, std::string_view bytes) {
  Record record{std::string(name), update_crc32(0, bytes.data(), bytes.size()),
                static_cast<uint32_t>(bytes.size()), taken_ + static_cast<uint32_t>(out_.size())};
  write_header(record, 0);
  out_ += bytes;
  records_.push_back(std::move(record));
}

void ZipWriter::add_external(std::string_view name, uint32_t byte_count, uint32_t crc32,
                             size_t alignment) {
  Record record{std::string(name), crc32, byte_count, static_cast<uint32_t>(out_.size())};
  const size_t unpadded = out_.size() + kLocalBytes + name.size() + 4;  // 4: the field's own head
  write_header(record, 4 + (alignment - unpadded % alignment) % alignment);
  records_.push_back(std::move(record));
}

std::string ZipWriter::take_prefix() {
  taken_ = static_cast<uint32_t>(out_.size()) + records_.back().byte_count;
  return std::exchange(out_, {});
}

std::string ZipWriter::finish() {
  const uint32_t directory_offset = taken_ + static_cast<uint32_t>(out_.size());
  for (const Record& record : records_) {
    put32(out_, kCentralSignature);
    put16(out_, 0);  // made by
    put_common(out_, record.crc32, record.byte_count, record.name.size(), 0);
    put16(out_, 0);  // comment
    put16(out_, 0);  // disk
    put16(out_, 0);  // internal attributes
    put32(out_, 0);  // external attributes
    put32(out_, record.header_offset);
    out_ += record.name;
  }
  const uint32_t directory_bytes = taken_ + static_cast<uint32_t>(out_.size()) - directory_offset;
  put32(out_, kEndSignature);
  put32(out_, 0);  // disks
  put16(out_, static_cast<uint32_t>(records_.size()));
  put16(out_, static_cast<uint32_t>(records_.size()));
  put32(out_, directory_bytes);
  put32(out_, directory_offset);
  put16(out_, 0);  // comment
  return std::move(out_);
}

std::map<std::string, ZipRecord> read_zip(const ByteSource& source, const std::string& what) {
  return ZipReader(source, what).run();
}

void read_record(const ByteSource& source, const ZipRecord& record, void* out,
                 const std::string& what) {
  compare_crc(source, record, static_cast<char*>(out), what);
}

void check_crc(const ByteSource& source, const ZipRecord& record, const std::string& what) {
  if (record.crc32 != 0) {
    compare_crc(source, record, nullptr, what);
  }
}

}  // namespace fsdp::archive
