#include "fsdp_runtime/src/state_dict/load_items.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "fsdp_runtime/plan/box.h"
#include "fsdp_runtime/src/engine/disk_memory.h"

namespace fsdp {
namespace {

constexpr int64_t kBucketBytes = int64_t{64} << 20;
/// Of tensors in a bucket: more than any element is large.
constexpr int64_t kBucketAlignment = 64;

at::IntArrayRef shape_of(const StateValue& value) {
  if (const auto* whole = std::get_if<at::Tensor>(&value)) {
    return whole->sizes();
  }
  return std::get<LocalShard>(value).global_shape;
}

const at::Tensor& data_of(const StateValue& value) {
  const auto* whole = std::get_if<at::Tensor>(&value);
  return whole != nullptr ? *whole : std::get<LocalShard>(value).local;
}

std::string text_of(const std::vector<Box>& boxes) {
  std::ostringstream text;
  for (const Box& box : boxes) {
    text << at::IntArrayRef(box.sizes) << " at " << at::IntArrayRef(box.offsets) << ' ';
  }
  return boxes.empty() ? "nothing " : text.str();
}

std::string shard_mismatch(const LoadItem& item) {
  const auto* given = std::get_if<LocalShard>(item.source);
  if (given == nullptr) {
    return "";
  }
  const auto* target = std::get_if<LocalShard>(&item.target);
  if (target == nullptr) {
    return item.key + ": a shard is given for a tensor that every rank has whole";
  }
  if (given->boxes != target->boxes) {
    return item.key + ": the shard given has " + text_of(given->boxes) +
           "of the tensor, this rank " + text_of(target->boxes) +
           "(another number of ranks, or another division into units); load whole tensors, which "
           "get with full_state_dict gives";
  }
  const int64_t numel = plan::total_numel(target->boxes);
  if (given->local.numel() != numel) {
    return item.key + ": the shard given has " + std::to_string(given->local.numel()) +
           " elements, its boxes " + std::to_string(numel);
  }
  return "";
}

void copy_to(const StateValue& target, const StateValue& source) {
  if (const auto* whole = std::get_if<at::Tensor>(&target)) {
    whole->copy_(std::get<at::Tensor>(source));
    return;
  }
  const auto& shard = std::get<LocalShard>(target);
  if (const auto* whole = std::get_if<at::Tensor>(&source)) {
    copy_part_of(*whole, shard);
  } else {
    shard.local.copy_(std::get<LocalShard>(source).local.reshape(shard.local.sizes()));
  }
  release_pages(shard.local);
}

/// What is sent of a tensor at a time: the whole, or rows of it.
struct Piece {
  const LoadItem* item = nullptr;
  Box box;
};

int64_t bytes_of(const Piece& piece) {
  return plan::numel_of(piece.box) * static_cast<int64_t>(c10::elementSize(piece.item->dtype));
}

/// In a bucket.
int64_t padded_bytes_of(const Piece& piece) {
  return (bytes_of(piece) + kBucketAlignment - 1) / kBucketAlignment * kBucketAlignment;
}

/// Of at most kBucketBytes each, or one row.
std::vector<Piece> pieces_of(const std::vector<LoadItem>& items) {
  std::vector<Piece> pieces;
  for (const LoadItem& item : items) {
    const Piece whole{&item, plan::whole_box(shape_of(item.target).vec())};
    if (bytes_of(whole) <= kBucketBytes) {
      pieces.push_back(whole);
      continue;
    }
    const int64_t rows = whole.box.sizes[0];
    const int64_t rows_at_once = std::max<int64_t>(kBucketBytes / (bytes_of(whole) / rows), 1);
    for (int64_t first = 0; first < rows; first += rows_at_once) {
      Piece& part = pieces.emplace_back(whole);
      part.box.offsets[0] = first;
      part.box.sizes[0] = std::min(rows_at_once, rows - first);
    }
  }
  return pieces;
}

/// One past the last piece of the bucket that begins with `begin`, which is not empty.
size_t end_of_bucket(const std::vector<Piece>& pieces, size_t begin, int64_t& bytes) {
  size_t end = begin;
  bytes = 0;
  while (end < pieces.size() &&
         (end == begin || bytes + padded_bytes_of(pieces[end]) <= kBucketBytes)) {
    bytes += padded_bytes_of(pieces[end++]);
  }
  return end;
}

at::Tensor rows_in(const at::Tensor& whole, const Box& box) {
  return box.sizes.empty() ? whole : whole.narrow(0, box.offsets[0], box.sizes[0]);
}

/// The piece in `bucket`, which has it from byte `offset` on.
at::Tensor tensor_in(const at::Tensor& bucket, int64_t offset, const Piece& piece) {
  return bucket.narrow(0, offset, bytes_of(piece)).view(piece.item->dtype).view(piece.box.sizes);
}

/// Writes what the target has of the piece, which is `received`.
void take(const Piece& piece, const at::Tensor& received) {
  if (const auto* whole = std::get_if<at::Tensor>(&piece.item->target)) {
    rows_in(*whole, piece.box).copy_(received);
    return;
  }
  const auto& shard = std::get<LocalShard>(piece.item->target);
  const at::Tensor flat = received.view({-1});
  int64_t begin = 0;
  for (const Box& box : shard.boxes) {
    if (const std::optional<Box> part = plan::intersect(box, piece.box)) {
      plan::for_each_run(*part, piece.box, box, [&](int64_t from, int64_t to, int64_t numel) {
        shard.local.narrow(0, begin + to, numel).copy_(flat.narrow(0, from, numel));
      });
    }
    begin += plan::numel_of(box);
  }
  release_pages(shard.local);
}

}  // namespace

std::string mismatch_of(const LoadItem& item) {
  const StateValue& source = *item.source;
  std::ostringstream text;
  if (!data_of(source).defined()) {
    text << item.key << ": the tensor given is undefined";
  } else if (data_of(source).is_meta()) {
    text << item.key << ": the tensor given is on the meta device and has no data; load it first";
  } else if (data_of(source).layout() != at::kStrided) {
    text << item.key << ": the tensor given is " << data_of(source).layout()
         << ", expected a dense one; convert it with to_dense()";
  } else if (shape_of(source) != shape_of(item.target)) {
    text << "size mismatch for " << item.key << ": the dict has shape " << shape_of(source)
         << ", expected " << shape_of(item.target);
  } else if (data_of(source).scalar_type() != item.dtype) {
    text << "dtype mismatch for " << item.key << ": the dict has " << data_of(source).scalar_type()
         << ", expected " << item.dtype << "; convert it first";
  } else {
    return shard_mismatch(item);
  }
  return text.str();
}

void load_own(const std::vector<LoadItem>& items) {
  for (const LoadItem& item : items) {
    copy_to(item.target, *item.source);
  }
}

void load_from_first(const std::vector<LoadItem>& items, const ModelRanks& ranks) {
  const std::vector<Piece> pieces = pieces_of(items);
  size_t begin = 0;
  while (begin < pieces.size()) {
    int64_t bytes = 0;
    const size_t end = end_of_bucket(pieces, begin, bytes);
    const at::Tensor bucket =
        at::empty({bytes}, at::TensorOptions(at::kByte).device(ranks.device()));
    std::vector<at::Tensor> tensors;
    int64_t offset = 0;
    for (size_t i = begin; i < end; ++i) {
      tensors.push_back(tensor_in(bucket, offset, pieces[i]));
      offset += padded_bytes_of(pieces[i]);
      if (ranks.is_first()) {
        tensors.back().copy_(rows_in(std::get<at::Tensor>(*pieces[i].item->source), pieces[i].box));
      }
    }
    if (bytes > 0) {
      ranks.send_from_first(bucket);
    }
    for (size_t i = begin; i < end; ++i) {
      take(pieces[i], tensors[i - begin]);
    }
    begin = end;
  }
}

}  // namespace fsdp
