#include "formats/checkpoint/blob_source.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace fsdprun::checkpoint {
namespace {

// Of the writers' blobs the data begin after less than 1 KiB, and less than 2 KiB follow them.
constexpr int64_t kEndBytes = int64_t{4} << 10;
// A blob of so few bytes is read at once.
constexpr int64_t kSmallBytes = int64_t{64} << 10;
// What fits into the cache of a core, so that what looks at a piece and what copies it find it
// there.
constexpr int64_t kPieceBytes = int64_t{256} << 10;
constexpr int64_t kPageBytes = int64_t{4} << 10;
// Copies of so many bytes pass the cache by.
constexpr size_t kStreamedBytes = size_t{4} << 10;
constexpr int64_t kGapBytes = int64_t{16} << 10;

/// The first of those that begin at `first` or later and reach beyond `position`.
size_t NextAfter(const std::vector<WantedBytes>& wanted, size_t first, int64_t position) {
  while (first < wanted.size() && wanted[first].begin + wanted[first].byte_count <= position) {
    ++first;
  }
  return first;
}

#if defined(__SSE2__)
/// memcpy() of what is in the cache to where nobody looks soon: the lines of `to` need not be
/// loaded before they are written over, which halves what goes between the cache and the memory.
void CopyPastCache(char* to, const char* from, size_t byte_count) {
  constexpr size_t kLine = 64;
  const size_t head =
      std::min(byte_count, (kLine - reinterpret_cast<uintptr_t>(to) % kLine) % kLine);
  std::memcpy(to, from, head);
  size_t done = head;
  for (; done + kLine <= byte_count; done += kLine) {
    const auto* source = reinterpret_cast<const __m128i*>(from + done);
    auto* target = reinterpret_cast<__m128i*>(to + done);
    const __m128i a = _mm_loadu_si128(source);
    const __m128i b = _mm_loadu_si128(source + 1);
    const __m128i c = _mm_loadu_si128(source + 2);
    const __m128i d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(target, a);
    _mm_stream_si128(target + 1, b);
    _mm_stream_si128(target + 2, c);
    _mm_stream_si128(target + 3, d);
  }
  std::memcpy(to + done, from + done, byte_count - done);
  _mm_sfence();  // other threads see it as they see other stores
}
#endif

void Copy(char* to, const char* from, size_t byte_count) {
#if defined(__SSE2__)
  if (byte_count >= kStreamedBytes) {
    CopyPastCache(to, from, byte_count);
    return;
  }
#endif
  std::memcpy(to, from, byte_count);
}

/// Room in `scratch` for a piece that begins anywhere in a page: at the beginning of a page.
char* PagesIn(std::string& scratch) {
  scratch.resize(std::max(scratch.size(), static_cast<size_t>(kPieceBytes + kPageBytes)));
  const auto begin = reinterpret_cast<uintptr_t>(scratch.data());
  return scratch.data() + (kPageBytes - begin % kPageBytes) % kPageBytes;
}

/// Copies what is wanted of the `count` bytes at `position`.
void CopyOut(const std::vector<WantedBytes>& wanted, size_t first, int64_t position,
             const char* data, int64_t count) {
  for (size_t i = first; i < wanted.size() && wanted[i].begin < position + count; ++i) {
    const int64_t from = std::max(position, wanted[i].begin);
    const int64_t to = std::min(position + count, wanted[i].begin + wanted[i].byte_count);
    if (from < to) {
      Copy(wanted[i].out + (from - wanted[i].begin), data + (from - position),
           static_cast<size_t>(to - from));
    }
  }
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
  char* const pages = PagesIn(scratch);
  size_t next = 0;
  for (int64_t position = begin; position < end;) {
    next = NextAfter(wanted, next, position);
    // As the file's pages lie, and to the end of one: then the kernel copies whole pages.
    const int64_t in_page = (offset_ + position) % kPageBytes;
    const int64_t count = std::min(end - position, kPieceBytes - in_page);
    char* const piece = pages + in_page;
    read(position, piece, count);
    see(piece, static_cast<size_t>(count));
    CopyOut(wanted, next, position, piece, count);
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
