#include "fsdp_runtime/src/comm/sequence_recorder.h"

#include <pthread.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "fsdp_runtime/src/comm/sigpipe_block.h"

namespace fsdp {

namespace {

// Of reports that are known to be there.
constexpr std::chrono::seconds kReadMax{5};

}  // namespace

std::string SequenceReport::text() const {
  return std::to_string(round) + " " + std::to_string(pending) + " " +
         std::to_string(gather_lane.size()) + " " + gather_lane + reduce_lane;
}

SequenceReport SequenceReport::parse(const std::string& text) {
  SequenceReport report;
  size_t gather_bytes = 0;
  std::istringstream in(text);
  in >> report.round >> report.pending >> gather_bytes;
  const auto begin = static_cast<size_t>(in.tellg()) + 1;
  if (in.fail() || gather_bytes > text.size() || begin > text.size() - gather_bytes) {
    return {};
  }
  report.gather_lane = text.substr(begin, gather_bytes);
  report.reduce_lane = text.substr(begin + gather_bytes);
  return report;
}

std::string find_difference(const std::vector<SequenceReport>& reports,
                            const std::vector<int64_t>& names, bool stands_still) {
  const bool is_one_round = std::all_of(reports.begin(), reports.end(), [&](const auto& report) {
    return report.round == reports.front().round;
  });
  if (!is_one_round) {
    return "";  // the agreement between the rounds tells
  }
  std::vector<std::string> gather, reduce;
  for (const SequenceReport& report : reports) {
    gather.push_back(report.gather_lane);
    reduce.push_back(report.reduce_lane);
  }
  constexpr auto kCommon = IssueLog::Extent::kIssuedByAll;
  std::string text = IssueLog::first_difference(Lane::kGather, gather, names, kCommon);
  if (text.empty()) {
    text = IssueLog::first_difference(Lane::kReduce, reduce, names, kCommon);
  }
  if (!text.empty() || !stands_still) {
    return text;
  }
  for (const auto& [lane, by_rank] :
       {std::pair(Lane::kGather, &gather), std::pair(Lane::kReduce, &reduce)}) {
    const std::string counts = IssueLog::different_counts(lane, *by_rank, names);
    text += counts.empty() || text.empty() ? counts : "; " + counts;
  }
  return text.empty() ? ""
                      : "all ranks wait, and have not issued the same operations since they last "
                        "agreed: " +
                            text + "; look for a branch that depends on the rank or its data";
}

SequenceRecorder::SequenceRecorder(std::shared_ptr<StoreClient> store, std::string prefix,
                                   Group group, Patience patience, OnDifference on_difference)
    : store_(std::move(store)),
      prefix_(std::move(prefix)),
      group_(std::move(group)),
      patience_(patience),
      on_difference_(std::move(on_difference)),
      thread_([this] {
        ::pthread_setname_np(::pthread_self(), "fsdp-recorder");
        const SigpipeBlock no_sigpipe;
        loop();
      }) {}

SequenceRecorder::~SequenceRecorder() {
  {
    std::lock_guard lock(mu_);
    is_stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SequenceRecorder::add(Lane lane, const shm::Descriptor& issued) {
  std::lock_guard lock(mu_);
  log_.add(lane, issued);
}

void SequenceRecorder::keep(WorkPtr work) {
  std::lock_guard lock(mu_);
  // Those that have ended give back what they hold: no more than two per operation, so that the
  // cost of one is bounded.
  for (int i = 0; i < 2 && !pending_.empty() && pending_.front().work->is_done(); ++i) {
    pending_.pop_front();
  }
  const bool was_idle = pending_.empty();
  pending_.push_back({std::move(work), std::chrono::steady_clock::now()});
  if (was_idle) {
    changed_.notify_all();
  }
}

std::shared_ptr<const IssueLog> SequenceRecorder::next_round() {
  std::lock_guard lock(mu_);
  ++round_;
  return std::make_shared<const IssueLog>(std::exchange(log_, {}));
}

SequenceRecorder::Waiting::Waiting(SequenceRecorder& recorder,
                                   std::shared_ptr<const IssueLog> round)
    : recorder_(recorder) {
  std::lock_guard lock(recorder_.mu_);
  recorder_.host_waits_since_ = std::chrono::steady_clock::now();
  recorder_.agreed_on_ = std::move(round);
  recorder_.changed_.notify_all();
}

SequenceRecorder::Waiting::~Waiting() {
  std::lock_guard lock(recorder_.mu_);
  recorder_.host_waits_since_.reset();
  recorder_.agreed_on_.reset();
}

bool SequenceRecorder::is_stuck(TimePoint now) {
  while (!pending_.empty() && pending_.front().work->is_done()) {
    pending_.pop_front();
  }
  return (!pending_.empty() && now - pending_.front().issued >= patience_.look) ||
         (host_waits_since_ && now - *host_waits_since_ >= patience_.look);
}

SequenceReport SequenceRecorder::own_report() const {
  const IssueLog& log = agreed_on_ ? *agreed_on_ : log_;
  return {agreed_on_ ? round_ - 1 : round_, pending_.size(), log.bytes_of(Lane::kGather),
          log.bytes_of(Lane::kReduce)};
}

void SequenceRecorder::loop() {
  std::unique_lock lock(mu_);
  while (!is_stopping_) {
    if (pending_.empty() && !host_waits_since_ && reported_.empty()) {
      changed_.wait(lock, [this] {
        return is_stopping_ || !pending_.empty() || host_waits_since_.has_value();
      });
    } else {
      changed_.wait_for(lock, patience_.look, [this] { return is_stopping_; });
    }
    const bool is_waiting = !is_stopping_ && is_stuck(std::chrono::steady_clock::now());
    const SequenceReport own = is_waiting ? own_report() : SequenceReport();
    lock.unlock();
    try {
      if (is_waiting && !is_told_) {
        report(own);
      } else if (!is_told_ && !reported_.empty()) {
        withdraw();
      }
    } catch (const StoreError&) {  // NOLINT(bugprone-empty-catch)
      // Who has lost the store hears of it at the next agreement; till then there is another try.
    }
    lock.lock();
  }
  if (!is_told_ && !reported_.empty()) {
    lock.unlock();
    try {
      withdraw();                  // this rank does not wait any more
    } catch (const StoreError&) {  // NOLINT(bugprone-empty-catch): nobody can be told
    }
  }
}

void SequenceRecorder::report(const SequenceReport& own) {
  std::string text = own.text();
  if (text != reported_) {
    store_->set(key(group_.rank), text);
    reported_ = std::move(text);
  }
  const std::string difference = group_.rank == 0 ? compare_all() : told_by_rank_0();
  if (!difference.empty()) {
    is_told_ = true;
    on_difference_(difference);
  }
}

std::string SequenceRecorder::told_by_rank_0() {
  const std::string known = key_of_difference();
  return store_->check({known}) ? store_->get(known, std::chrono::steady_clock::now() + kReadMax)
                                : "";
}

std::string SequenceRecorder::compare_all() {
  std::vector<std::string> keys;
  for (int64_t rank = 0; rank < group_.size; ++rank) {
    keys.push_back(key(rank));
  }
  if (!store_->check(keys)) {
    seen_.clear();
    return "";  // some go on
  }
  const auto now = std::chrono::steady_clock::now();
  std::vector<std::string> all = store_->multi_get(keys, now + kReadMax);
  if (all != seen_) {
    seen_ = std::move(all);
    same_since_ = now;
  }
  std::vector<SequenceReport> reports;
  for (const std::string& each : seen_) {
    reports.push_back(SequenceReport::parse(each));
  }
  std::string difference =
      find_difference(reports, group_.names, now - same_since_ >= patience_.standstill);
  if (!difference.empty()) {
    store_->set(key_of_difference(), difference);
  }
  return difference;
}

void SequenceRecorder::withdraw() {
  store_->delete_key(key(group_.rank));
  reported_.clear();
  seen_.clear();
}

}  // namespace fsdp
