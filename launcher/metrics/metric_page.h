#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/string_view.h"
#include "launcher/metrics/duration_histogram.h"
#include "prometheus/metric_family.h"

namespace fsdprun {

/// Metrics of one process, for Prometheus. Families are in the order in which they were first
/// added to; rows of one name are one family, whoever has added them.
class MetricPage {
 public:
  using Label = std::pair<absl::string_view, absl::string_view>;
  using Labels = std::vector<Label>;

  /// `common`: labels of every row. Text that is not UTF-8 is replaced: it would void the page.
  explicit MetricPage(const Labels& common) : common_(MakeLabels(common)) {}

  /// `name` without the beginning that all have, "fsdprun_", unless it begins with "process_".
  /// `help` counts where the name is new.
  void Gauge(absl::string_view name, absl::string_view help, double value,
             const Labels& labels = {});
  void Counter(absl::string_view name, absl::string_view help, double value,
               const Labels& labels = {});
  void Histogram(absl::string_view name, absl::string_view help, const DurationHistogram& values,
                 const Labels& labels = {});

  const std::vector<prometheus::MetricFamily>& families() const { return families_; }
  /// In the text format 0.0.4.
  std::string Text() const;

 private:
  static std::vector<prometheus::ClientMetric::Label> MakeLabels(const Labels& labels);
  prometheus::ClientMetric& Add(absl::string_view name, absl::string_view help,
                                prometheus::MetricType type, const Labels& labels);

  const std::vector<prometheus::ClientMetric::Label> common_;
  std::vector<prometheus::MetricFamily> families_;
};

}  // namespace fsdprun
