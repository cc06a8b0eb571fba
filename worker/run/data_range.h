#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "worker/data/sample_order.h"

namespace fsdprun::worker {

/// What a step took of the data: from `begin` to before `end`, which is later.
struct DataRange {
  DataCursor begin;
  DataCursor end;
  bool operator==(const DataRange&) const = default;
};

inline bool IsBefore(const DataCursor& a, const DataCursor& b) {
  return std::pair(a.epoch, a.offset) < std::pair(b.epoch, b.offset);
}

/// Where a step whose data would begin at `cursor` begins, if none may be of `left_out`: behind all
/// that it would run into. What lies before such data in the step, which is less than a step takes,
/// is left out with them; nothing if steps are cut as they were when the data were found bad.
/// `end_of_step`: where the data of a step end that begin at a position. Pure.
inline DataCursor BeginBehind(const std::vector<DataRange>& left_out, DataCursor cursor,
                              const std::function<DataCursor(const DataCursor&)>& end_of_step) {
  for (size_t i = 0; i < left_out.size();) {
    const bool is_met =
        IsBefore(cursor, left_out[i].end) && IsBefore(left_out[i].begin, end_of_step(cursor));
    cursor = is_met ? left_out[i].end : cursor;
    i = is_met ? 0 : i + 1;
  }
  return cursor;
}

}  // namespace fsdprun::worker
