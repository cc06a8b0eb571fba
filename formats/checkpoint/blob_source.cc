#include "formats/checkpoint/blob_source.h"

#include <algorithm>
#include <cstring>

namespace fsdprun::checkpoint {
namespace {

// Of the writers' blobs the data begin after less than 1 KiB, and less than 2 KiB follow them.
constexpr int64_t kEndBytes = int64_t{4} << 10;
// A blob of so few bytes is read at once.
constexpr int64_t kSmallBytes = int64_t{64} << 10;
// What fits into the cache of a core, so that a checksum finds it there.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
// Wanted bytes from here on are read to where they belong; fewer are copied from a larger read.
constexpr int64_t kDirectBytes = int64_t{64} << 10;
constexpr int64_t kGapBytes = int64_t{16} << 10;

/// The first of those that begin at `first` or later and reach beyond `position`.
size_t NextAfter(const std::vector<WantedBytes>& wanted, size_t first, int64_t position) {
  while (first < wanted.size() && wanted[first].begin + wanted[first].byte_count <= position) {
    ++first;
  }
  return first;
}

/// Copies what is wanted of the `count` bytes at `position`.
void CopyOut(const std::vector<WantedBytes>& wanted, size_t first, int64_t position,
             const char* data, int64_t count) {
  for (size_t i = first; i < wanted.size() && wanted[i].begin < position + count; ++i) {
    const int64_t from = std::max(position, wanted[i].begin);
    const int64_t to = std::min(position + count, wanted[i].begin + wanted[i].byte_count);
    if (from < to) {
      std::memcpy(wanted[i].out + (from - wanted[i].begin), data + (from - position),
                  static_cast<size_t>(to - from));
    }
  }
}

/// Where the next of them begins that is read to its place, else `end`.
int64_t NextDirect(const std::vector<WantedBytes>& wanted, size_t first, int64_t end) {
  for (size_t i = first; i < wanted.size() && wanted[i].begin < end; ++i) {
    if (wanted[i].byte_count >= kDirectBytes) {
      return wanted[i].begin;
    }
  }
  return end;
}

}  // namespace

BlobSource::BlobSource(const InputFile& file, const BlobLocation& blob)
    : file_(file), offset_(blob.offset), length_(blob.length) {
  const int64_t head = length_ <= kSmallBytes ? length_ : kEndBytes;
  const int64_t tail = std::min(length_ - head, kEndBytes);
  head_.resize(static_cast<size_t>(head));
  tail_.resize(static_cast<size_t>(tail));
  file_.Read(offset_, head_.data(), head);
  file_.Read(offset_ + length_ - tail, tail_.data(), tail);
}

void BlobSource::read(int64_t offset, void* out, int64_t byte_count) const {
  const auto head = static_cast<int64_t>(head_.size());
  const int64_t tail_begin = length_ - static_cast<int64_t>(tail_.size());
  if (offset + byte_count <= head) {
    std::memcpy(out, head_.data() + offset, static_cast<size_t>(byte_count));
  } else if (offset >= tail_begin) {
    std::memcpy(out, tail_.data() + (offset - tail_begin), static_cast<size_t>(byte_count));
  } else {
    file_.Read(offset_ + offset, out, byte_count);
  }
}

void BlobSource::ReadThrough(
    int64_t begin, int64_t end, const std::vector<WantedBytes>& wanted, std::string& scratch,
    const std::function<void(const char* data, size_t byte_count)>& see) const {
  size_t next = 0;
  for (int64_t position = begin; position < end;) {
    next = NextAfter(wanted, next, position);
    const bool is_direct = next < wanted.size() && wanted[next].begin <= position &&
                           wanted[next].byte_count >= kDirectBytes;
    const int64_t stop =
        is_direct ? wanted[next].begin + wanted[next].byte_count : NextDirect(wanted, next, end);
    const int64_t count = std::min(stop - position, kPieceBytes);
    char* piece = nullptr;
    if (is_direct) {
      piece = wanted[next].out + (position - wanted[next].begin);
    } else {
      scratch.resize(std::max(scratch.size(), static_cast<size_t>(count)));
      piece = scratch.data();
    }
    read(position, piece, count);
    see(piece, static_cast<size_t>(count));
    if (!is_direct) {
      CopyOut(wanted, next, position, piece, count);
    }
    position += count;
  }
}

void BlobSource::ReadParts(const std::vector<WantedBytes>& wanted, std::string& scratch) const {
  for (size_t first = 0; first < wanted.size();) {
    int64_t end = wanted[first].begin + wanted[first].byte_count;
    size_t last = first + 1;
    while (last < wanted.size() && wanted[last].begin - end <= kGapBytes) {
      end = wanted[last].begin + wanted[last].byte_count;
      ++last;
    }
    const std::vector<WantedBytes> together(wanted.begin() + static_cast<std::ptrdiff_t>(first),
                                            wanted.begin() + static_cast<std::ptrdiff_t>(last));
    ReadThrough(wanted[first].begin, end, together, scratch, [](const char*, size_t) {});
    first = last;
  }
}

}  // namespace fsdprun::checkpoint
