#include "launcher/ledger/ledger_json.h"

#include <nlohmann/json.hpp>
#include <optional>

namespace fsdprun {

std::string LedgerJson(const TimeLedger& ledger, absl::string_view job, MonoTime now) {
  using json = nlohmann::ordered_json;
  json buckets;
  const TimeLedger::Times times = ledger.All(now);
  for (size_t i = 0; i < kTimeBuckets; ++i) {
    buckets[std::string(TimeBucketName(static_cast<TimeBucket>(i)))] = ToSeconds(times[i]);
  }
  const std::optional<double> goodput = ledger.Goodput(Duration::max(), now);
  const json all = {{"v", 1},
                    {"job", std::string(job)},
                    {"wall_s", ToSeconds(ledger.Wall(now))},
                    {"buckets_s", std::move(buckets)},
                    {"goodput_ratio", goodput.has_value() ? json(*goodput) : json(nullptr)},
                    {"repeated_steps", ledger.repeated_steps()}};
  return all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace fsdprun
