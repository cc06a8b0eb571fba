#include "worker/checkpoint/zip_archive.h"

#include <algorithm>
#include <utility>

#include "worker/checkpoint/error.h"
#include "worker/checkpoint/torch_blob.h"

namespace fsdprun::worker::checkpoint {
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
constexpr int64_t kCrcBufferBytes = int64_t{4} << 20;

void Put16(std::string& out, uint32_t value) {
  out += static_cast<char>(value);
  out += static_cast<char>(value >> 8);
}

void Put32(std::string& out, uint32_t value) {
  Put16(out, value & 0xffff);
  Put16(out, value >> 16);
}

uint64_t Get(std::string_view bytes, size_t offset, int byte_count) {
  uint64_t value = 0;
  for (int i = 0; i < byte_count; ++i) {
    value |= static_cast<uint64_t>(static_cast<uint8_t>(bytes[offset + static_cast<size_t>(i)]))
             << (8 * i);
  }
  return value;
}

/// The fields that a local header and a directory entry share.
void PutCommon(std::string& out, uint32_t crc32, uint32_t byte_count, size_t name_bytes,
               size_t extra_bytes) {
  Put16(out, 0);  // version needed
  Put16(out, kUtf8Flag);
  Put16(out, 0);  // stored
  Put16(out, 0);  // time
  Put16(out, kDosDate);
  Put32(out, crc32);
  Put32(out, byte_count);
  Put32(out, byte_count);
  Put16(out, static_cast<uint32_t>(name_bytes));
  Put16(out, static_cast<uint32_t>(extra_bytes));
}

class ZipReader {
 public:
  ZipReader(const BlobSource& source, const std::string& what) : source_(source), what_(what) {}

  std::map<std::string, ZipRecord> Run() {
    FindDirectory();
    std::string directory = Bytes(directory_offset_, directory_bytes_);
    std::map<std::string, ZipRecord> records;
    size_t position = 0;
    for (uint64_t i = 0; i < record_count_; ++i) {
      auto [name, record] = ReadEntry(directory, position);
      const size_t slash = name.find('/');
      if (!records.emplace(name.substr(slash == std::string::npos ? 0 : slash + 1), record)
               .second) {
        Fail("has the record " + name + " twice");
      }
    }
    return records;
  }

 private:
  [[noreturn]] void Fail(const std::string& problem) const {
    throw CheckpointError(what_ + ": the archive " + problem);
  }

  std::string Bytes(int64_t offset, int64_t byte_count) const {
    if (offset < 0 || byte_count < 0 || offset > source_.size() ||
        byte_count > source_.size() - offset) {
      Fail("points outside of itself");
    }
    std::string bytes(static_cast<size_t>(byte_count), '\0');
    source_.Read(offset, bytes.data(), byte_count);
    return bytes;
  }

  void FindDirectory() {
    if (source_.size() < kEndBytes) {
      Fail("is too short (" + std::to_string(source_.size()) + " bytes)");
    }
    // torch writes no archive comment, so the end record is the last thing there is.
    const int64_t end_offset = source_.size() - kEndBytes;
    const std::string end = Bytes(end_offset, kEndBytes);
    if (Get(end, 0, 4) != kEndSignature) {
      Fail("has no end record: it is truncated or overwritten");
    }
    record_count_ = Get(end, 10, 2);
    directory_bytes_ = static_cast<int64_t>(Get(end, 12, 4));
    directory_offset_ = static_cast<int64_t>(Get(end, 16, 4));
    if (end_offset >= kLocator64Bytes) {
      const std::string locator = Bytes(end_offset - kLocator64Bytes, kLocator64Bytes);
      if (Get(locator, 0, 4) == kLocator64Signature) {
        const std::string end64 = Bytes(static_cast<int64_t>(Get(locator, 8, 8)), kEnd64Bytes);
        if (Get(end64, 0, 4) != kEnd64Signature) {
          Fail("has a damaged Zip64 end record");
        }
        record_count_ = Get(end64, 32, 8);
        directory_bytes_ = static_cast<int64_t>(Get(end64, 40, 8));
        directory_offset_ = static_cast<int64_t>(Get(end64, 48, 8));
      }
    }
    if (directory_bytes_ > kDirectoryBytesMax) {
      Fail("has a directory over the bound of " + std::to_string(kDirectoryBytesMax) + " bytes");
    }
  }

  std::pair<std::string, ZipRecord> ReadEntry(std::string_view directory, size_t& position) const {
    if (directory.size() - position < kCentralBytes ||
        Get(directory, position, 4) != kCentralSignature) {
      Fail("has a damaged directory");
    }
    const std::string_view entry = directory.substr(position);
    const uint64_t name_bytes = Get(entry, 28, 2);
    const uint64_t extra_bytes = Get(entry, 30, 2);
    const uint64_t comment_bytes = Get(entry, 32, 2);
    const uint64_t entry_bytes = kCentralBytes + name_bytes + extra_bytes + comment_bytes;
    if (entry.size() < entry_bytes) {
      Fail("has a damaged directory");
    }
    position += entry_bytes;
    std::string name(entry.substr(kCentralBytes, name_bytes));
    if (Get(entry, 10, 2) != 0 || (Get(entry, 8, 2) & kEncryptedFlag) != 0) {
      Fail("has the compressed or encrypted record " + name + "; only stored ones are read");
    }
    uint64_t sizes[3] = {Get(entry, 24, 4), Get(entry, 20, 4), Get(entry, 42, 4)};
    ReadZip64Field(entry.substr(kCentralBytes + name_bytes, extra_bytes), sizes);
    if (sizes[0] != sizes[1]) {
      Fail("has the compressed record " + name + "; only stored ones are read");
    }
    ZipRecord record = Locate(sizes[2], sizes[0]);
    record.crc32 = static_cast<uint32_t>(Get(entry, 16, 4));
    return {std::move(name), record};
  }

  /// Replaces those of uncompressed size, compressed size, header offset that are all ones.
  void ReadZip64Field(std::string_view extra, uint64_t (&values)[3]) const {
    while (extra.size() >= 4) {
      const uint64_t field_bytes = Get(extra, 2, 2);
      if (field_bytes > extra.size() - 4) {
        return;
      }
      if (Get(extra, 0, 2) == 1) {
        std::string_view field = extra.substr(4, field_bytes);
        for (uint64_t& value : values) {
          if (value == 0xffffffff && field.size() >= 8) {
            value = Get(field, 0, 8);
            field.remove_prefix(8);
          }
        }
      }
      extra.remove_prefix(4 + field_bytes);
    }
  }

  ZipRecord Locate(uint64_t header_offset, uint64_t byte_count) const {
    const auto limit = static_cast<uint64_t>(source_.size());
    if (header_offset > limit || byte_count > limit) {
      Fail("points outside of itself");
    }
    const std::string header = Bytes(static_cast<int64_t>(header_offset), kLocalBytes);
    if (Get(header, 0, 4) != kLocalSignature || Get(header, 8, 2) != 0) {
      Fail("has a damaged record header");
    }
    const uint64_t data_offset = header_offset + static_cast<uint64_t>(kLocalBytes) +
                                 Get(header, 26, 2) + Get(header, 28, 2);
    if (data_offset > limit || byte_count > limit - data_offset) {
      Fail("points outside of itself");
    }
    return {static_cast<int64_t>(data_offset), static_cast<int64_t>(byte_count), 0};
  }

  const BlobSource& source_;
  const std::string& what_;
  uint64_t record_count_ = 0;
  int64_t directory_offset_ = 0;
  int64_t directory_bytes_ = 0;
};

}  // namespace

void ZipWriter::Header(const Record& record, size_t padding) {
  Put32(out_, kLocalSignature);
  PutCommon(out_, record.crc32, record.byte_count, record.name.size(), padding);
  out_ += record.name;
  if (padding > 0) {
    Put16(out_, kPaddingField);
    Put16(out_, static_cast<uint32_t>(padding - 4));
    out_.append(padding - 4, 'Z');
  }
}

void ZipWriter::Add(std::string_view name, std::string_view bytes) {
  Record record{std::string(name), Crc32(0, bytes.data(), bytes.size()),
                static_cast<uint32_t>(bytes.size()), taken_ + static_cast<uint32_t>(out_.size())};
  Header(record, 0);
  out_ += bytes;
  records_.push_back(std::move(record));
}

void ZipWriter::AddExternal(std::string_view name, uint32_t byte_count, uint32_t crc32,
                            size_t alignment) {
  Record record{std::string(name), crc32, byte_count, static_cast<uint32_t>(out_.size())};
  const size_t unpadded = out_.size() + kLocalBytes + name.size() + 4;  // 4: the field's own head
  Header(record, 4 + (alignment - unpadded % alignment) % alignment);
  records_.push_back(std::move(record));
}

std::string ZipWriter::TakePrefix() {
  taken_ = static_cast<uint32_t>(out_.size()) + records_.back().byte_count;
  return std::exchange(out_, {});
}

std::string ZipWriter::Finish() {
  const uint32_t directory_offset = taken_ + static_cast<uint32_t>(out_.size());
  for (const Record& record : records_) {
    Put32(out_, kCentralSignature);
    Put16(out_, 0);  // made by
    PutCommon(out_, record.crc32, record.byte_count, record.name.size(), 0);
    Put16(out_, 0);  // comment
    Put16(out_, 0);  // disk
    Put16(out_, 0);  // internal attributes
    Put32(out_, 0);  // external attributes
    Put32(out_, record.header_offset);
    out_ += record.name;
  }
  const uint32_t directory_bytes = taken_ + static_cast<uint32_t>(out_.size()) - directory_offset;
  Put32(out_, kEndSignature);
  Put32(out_, 0);  // disks
  Put16(out_, static_cast<uint32_t>(records_.size()));
  Put16(out_, static_cast<uint32_t>(records_.size()));
  Put32(out_, directory_bytes);
  Put32(out_, directory_offset);
  Put16(out_, 0);  // comment
  return std::move(out_);
}

std::map<std::string, ZipRecord> ReadZip(const BlobSource& source, const std::string& what) {
  return ZipReader(source, what).Run();
}

void CheckCrc(const BlobSource& source, const ZipRecord& record, const std::string& what) {
  if (record.crc32 == 0) {
    return;
  }
  std::string buffer(static_cast<size_t>(std::min(record.byte_count, kCrcBufferBytes)), '\0');
  uint32_t crc = 0;
  for (int64_t done = 0; done < record.byte_count;) {
    const int64_t count = std::min(record.byte_count - done, kCrcBufferBytes);
    source.Read(record.data_offset + done, buffer.data(), count);
    crc = Crc32(crc, buffer.data(), static_cast<size_t>(count));
    done += count;
  }
  if (crc != record.crc32) {
    throw CheckpointError(what + " is damaged: its CRC-32 does not match");
  }
}

}  // namespace fsdprun::worker::checkpoint
