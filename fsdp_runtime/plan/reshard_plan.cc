#include "fsdp_runtime/plan/reshard_plan.h"

#include <algorithm>

namespace fsdp::plan {
namespace {

using Units = std::vector<UnitToGather>;

/// What the units around unit `i` take; of those for which `counts(unit)`.
template <class Counts>
int64_t bytes_around(const Units& units, size_t i, Counts counts) {
  int64_t bytes = 0;
  for (std::optional<size_t> outer = units[i].around; outer; outer = units[*outer].around) {
    bytes += counts(*outer) ? units[*outer].bytes : 0;
  }
  return bytes;
}

/// The order in which backward begins: a unit before those in it, of these the last one first.
std::vector<size_t> backward_order(const Units& units) {
  std::vector<std::vector<size_t>> inner(units.size());
  std::vector<size_t> open;  // the next one is the last
  for (size_t i = 0; i < units.size(); ++i) {
    (units[i].around ? inner[*units[i].around] : open).push_back(i);
  }
  std::vector<size_t> order;
  while (!open.empty()) {
    const size_t unit = open.back();
    open.pop_back();
    order.push_back(unit);
    open.insert(open.end(), inner[unit].begin(), inner[unit].end());
  }
  return order;
}

/// What was kept, the unit that computes, those around it, and the next one, kept or not.
int64_t most_in_forward(const Units& units, const std::vector<bool>& kept) {
  const auto is_not_kept = [&](size_t unit) { return !kept[unit]; };
  int64_t of_kept = 0;  // and begun
  int64_t most = 0;
  for (size_t i = 0; i < units.size(); ++i) {
    const int64_t next = i + 1 < units.size() ? units[i + 1].bytes_in_flight() : 0;
    const int64_t own = units[i].bytes + units[i].copied_from;
    most = std::max(most, of_kept + bytes_around(units, i, is_not_kept) + own + next);
    of_kept += kept[i] ? units[i].bytes : 0;
  }
  return most;
}

/// What is still kept, and these.
int64_t most_in_backward(const Units& units, const std::vector<bool>& kept) {
  const std::vector<size_t> order = backward_order(units);
  const auto all = [](size_t) { return true; };
  int64_t of_kept = 0;  // and not begun; of those that have, only units around one are not done
  int64_t most = 0;
  for (size_t k = order.size(); k-- > 0;) {
    const UnitToGather& unit = units[order[k]];
    const bool gathers_next = k + 1 < order.size() && !kept[order[k + 1]];
    const int64_t next = gathers_next ? units[order[k + 1]].bytes_in_flight() : 0;
    const int64_t own = unit.bytes + (kept[order[k]] ? 0 : unit.copied_from);
    most = std::max(most, of_kept + bytes_around(units, order[k], all) + own + next);
    of_kept += kept[order[k]] ? unit.bytes : 0;
  }
  return most;
}

}  // namespace

int64_t most_gathered(const Units& units, const std::vector<bool>& kept) {
  return std::max(most_in_forward(units, kept), most_in_backward(units, kept));
}

std::vector<bool> units_to_keep(const Units& units, int64_t budget) {
  std::vector<bool> kept(units.size(), false);
  // What is kept is not copied out in backward, which may leave room for one that had none before.
  for (bool has_grown = true; has_grown;) {
    has_grown = false;
    for (size_t i = units.size(); i-- > 0;) {
      if (!kept[i]) {
        kept[i] = true;
        kept[i] = most_gathered(units, kept) <= budget;
        has_grown = has_grown || kept[i];
      }
    }
  }
  return kept;
}

}  // namespace fsdp::plan
