#pragma once

#include <vector>

#include "worker/data/sample_order.h"

namespace fsdprun::worker {

/// What a step took of the data: from `begin` to before `end`, which is later.
struct DataRange {
  DataCursor begin;
  DataCursor end;
  bool operator==(const DataRange&) const = default;
};

/// Where a step whose data would begin at `cursor` begins, if none may be of `left_out`: behind
/// those that begin there. Pure.
inline DataCursor BeginBehind(const std::vector<DataRange>& left_out, DataCursor cursor) {
  for (size_t i = 0; i < left_out.size();) {
    const bool is_here = left_out[i].begin == cursor;
    cursor = is_here ? left_out[i].end : cursor;
    i = is_here ? 0 : i + 1;
  }
  return cursor;
}

}  // namespace fsdprun::worker
