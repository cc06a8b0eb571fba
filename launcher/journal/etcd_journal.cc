#include "launcher/journal/etcd_journal.h"

#include <poll.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"

namespace fsdprun {
namespace {

constexpr absl::string_view kPartsLine = "fsdprun journal in parts";
/// Of a record: far above what 65,536 nodes need.
constexpr size_t kMaxParts = 100;
/// Between two looks at a lease, of which nothing tells.
constexpr std::chrono::duration<int, std::milli> kLookPause(200);
/// Less than the lease, which begins when etcd has been asked.
constexpr Duration kSureFor = std::chrono::seconds(EtcdJournal::kLeaseSeconds - 2);
/// A lease that is never renewed is over by then, whatever etcd takes to notice.
constexpr Duration kAcquireTimeout = std::chrono::seconds(3 * EtcdJournal::kLeaseSeconds);
/// How long an etcd that cannot be reached is tried at the start.
constexpr Duration kReachTimeout = std::chrono::seconds(10);

std::string Who(const std::optional<std::string>& text) {
  const std::optional<Holder> holder = text.has_value() ? DecodeHolder(*text) : std::nullopt;
  return holder.has_value() ? Describe(*holder) : "it has not said which";
}

}  // namespace

EtcdJournal::EtcdJournal(std::unique_ptr<EtcdClient> client, Options options)
    : client_(std::move(client)),
      options_(std::move(options)),
      self_{options_.holder_id, ::getpid(), OwnHost(), ProcessMark(::getpid())},
      self_text_(EncodeHolder(self_)) {}

EtcdJournal::~EtcdJournal() {
  renewal_.reset();
  MutexLock lock(mu_);
  if (lease_ != 0) {
    client_->Revoke(lease_).IgnoreError();  // Else it is over by itself.
  }
}

std::string EtcdJournal::Key(const char* name) const {
  return absl::StrCat(options_.key, "/", name);
}

std::string EtcdJournal::PartKey(char set, size_t index) const {
  return absl::StrCat(options_.key, "/parts/", std::string(1, set), "/", index);
}

std::string EtcdJournal::Where() const {
  return absl::StrCat("key ", Key("record"), " of etcd at ", client_->target());
}

std::string EtcdJournal::identity() const { return absl::StrCat("etcd ", options_.key); }

// --- Taking it

absl::StatusOr<std::unique_ptr<EtcdJournal>> EtcdJournal::Open(std::unique_ptr<EtcdClient> client,
                                                               Options options) {
  auto journal = absl::WrapUnique(new EtcdJournal(std::move(client), std::move(options)));
  RETURN_IF_ERROR(journal->Acquire());
  RETURN_IF_ERROR(journal->ReadRecord());
  journal->renewal_ =
      std::make_unique<Repeater>(journal->options_.renewal_interval, [j = journal.get()] {
        if (const absl::Status status = j->Renew();
            absl::IsAborted(status) && j->options_.on_taken) {
          j->options_.on_taken(status);
        }
      });
  return journal;
}

absl::Status EtcdJournal::Acquire() {
  const MonoTime begun = MonoNow();
  MonoTime answered = begun;
  HolderWatch watch;
  for (;;) {
    const absl::StatusOr<bool> is_ours = TryToAcquire(watch);
    const MonoTime now = MonoNow();
    if (options_.is_cancelled && options_.is_cancelled()) {
      return absl::CancelledError("interrupted while opening the journal");
    }
    if (is_ours.ok() && *is_ours) {
      return absl::OkStatus();
    }
    answered = is_ours.ok() ? now : answered;
    if (!is_ours.ok() &&
        (!absl::IsUnavailable(is_ours.status()) || now - answered >= kReachTimeout)) {
      return is_ours.status();
    }
    if (now - begun >= kAcquireTimeout) {
      return absl::UnavailableError(absl::StrCat(
          "--journal: could not take ", options_.key, " of etcd at ", client_->target(), " within ",
          ToSeconds(kAcquireTimeout), " s: other coordinators are at it all the time; end them"));
    }
    ::poll(nullptr, 0, kLookPause.count());
  }
}

absl::StatusOr<bool> EtcdJournal::TryToAcquire(HolderWatch& watch) {
  ASSIGN_OR_RETURN(const std::optional<std::string> holder, client_->Get(Key("holder")));
  ASSIGN_OR_RETURN(const std::optional<EtcdClient::Entry> alive, client_->Read(Key("alive")));
  if (holder == self_text_) {
    return true;  // By a transaction of whose success nothing was heard.
  }
  if (!alive.has_value()) {
    return Replace(std::nullopt, holder);
  }
  const std::optional<Holder> other = DecodeHolder(alive->value);
  if (other.has_value() && HasEnded(*other)) {
    return Replace(alive->value, holder);
  }
  ASSIGN_OR_RETURN(const int64_t seconds_left, client_->SecondsLeft(alive->lease));
  const bool is_first = watch.See(alive->value, seconds_left);
  if (watch.lives()) {
    return absl::AlreadyExistsError(absl::StrCat(
        "--journal: another coordinator uses ", options_.key, " of etcd at ", client_->target(),
        " (", Who(alive->value), "); end it first, or give each job a run id of its own"));
  }
  if (is_first && options_.notify) {
    options_.notify(absl::StrCat("the journal ", options_.key, " is of another coordinator (",
                                 Who(alive->value), "); waiting for the end of its lease, at most ",
                                 seconds_left, " s if it is gone"));
  }
  return false;
}

absl::StatusOr<bool> EtcdJournal::Replace(const std::optional<std::string>& alive,
                                          const std::optional<std::string>& holder) {
  MutexLock lock(mu_);
  const MonoTime asked_at = MonoNow();
  ASSIGN_OR_RETURN(lease_, client_->Grant(kLeaseSeconds));
  ASSIGN_OR_RETURN(
      const bool is_ours,
      client_->Commit({.expects = {{Key("alive"), alive}, {Key("holder"), holder}},
                       .puts = {{Key("alive"), self_text_, lease_}, {Key("holder"), self_text_}}}));
  if (is_ours) {
    BeSureFrom(asked_at);
  } else {
    client_->Revoke(std::exchange(lease_, 0)).IgnoreError();
  }
  return is_ours;
}

absl::Status EtcdJournal::ReadRecord() {
  ASSIGN_OR_RETURN(std::optional<std::string> text, client_->Get(Key("record")));
  if (!text.has_value()) {
    return absl::OkStatus();
  }
  if (absl::string_view(*text).substr(0, kPartsLine.size()) == kPartsLine) {
    ASSIGN_OR_RETURN(text, JoinParts(*text));
  }
  return Use(*text, options_.job, Where(),
             absl::StrCat("delete all keys that begin with ", options_.key, "/"));
}

/// What a part lacks is found by the record's own sum.
absl::StatusOr<std::string> EtcdJournal::JoinParts(const std::string& directory) {
  const std::vector<std::string> words = absl::StrSplit(
      absl::string_view(directory).substr(kPartsLine.size()), ' ', absl::SkipEmpty());
  size_t count = 0;
  const bool is_good = words.size() == 2 && (words[0] == "a" || words[0] == "b") &&
                       absl::SimpleAtoi(words[1], &count) && count <= kMaxParts;
  std::string text;
  for (size_t i = 0; is_good && i < count; ++i) {
    ASSIGN_OR_RETURN(const std::optional<std::string> part,
                     client_->Get(PartKey(words[0].front(), i)));
    absl::StrAppend(&text, part.value_or(""));
  }
  if (is_good) {
    has_parts_ = true;
    set_ = words[0].front();
  }
  return text;
}

// --- Holding it

absl::Status EtcdJournal::Write(const job::Record& record) {
  const std::string text = FileText(Encode(record, options_.job));
  if (text.size() > options_.part_bytes) {
    return WriteParts(text);
  }
  EtcdChange change{.puts = {{Key("record"), text}}};
  if (has_parts_) {
    change.deletes_below.push_back(Key("parts/"));
  }
  RETURN_IF_ERROR(CommitInTurn(std::move(change)));
  has_parts_ = false;
  return absl::OkStatus();
}

// A reader finds the parts of the record before, or those of this one.
absl::Status EtcdJournal::WriteParts(const std::string& text) {
  const size_t count = (text.size() + options_.part_bytes - 1) / options_.part_bytes;
  if (count > kMaxParts) {
    return absl::UnavailableError(absl::StrCat(
        "--journal: the record of this job has ", text.size(), " bytes, more than the ",
        kMaxParts * options_.part_bytes,
        " that are kept in etcd; keep the journal of a job of so many nodes in a folder"));
  }
  const char next = set_ == 'a' ? 'b' : 'a';
  for (size_t i = 0; i < count; ++i) {
    RETURN_IF_ERROR(CommitInTurn(
        {.puts = {{PartKey(next, i), text.substr(i * options_.part_bytes, options_.part_bytes)}}}));
  }
  RETURN_IF_ERROR(CommitInTurn(
      {.puts = {{Key("record"), absl::StrCat(kPartsLine, " ", std::string(1, next), " ", count)}},
       .deletes_below = {absl::StrCat(Key("parts/"), std::string(1, set_), "/")}}));
  set_ = next;
  has_parts_ = true;
  return absl::OkStatus();
}

absl::Status EtcdJournal::CommitAsHolder(EtcdChange change) {
  change.expects.push_back({Key("holder"), self_text_});
  ASSIGN_OR_RETURN(const bool is_done, client_->Commit(change));
  if (is_done) {
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::optional<std::string> holder, client_->Get(Key("holder")));
  if (holder == self_text_) {
    return absl::UnavailableError(
        absl::StrCat("--journal: ", Where(), " changes all the time; see who writes there"));
  }
  if (holder.has_value()) {
    return absl::AbortedError(absl::StrCat(
        "another coordinator (", Who(holder), ") has taken run id '", options_.job.run_id,
        "' over, as ", Key("holder"), " of etcd at ", client_->target(),
        " says; this one was stopped, or could not reach etcd, for longer than its lease of ",
        kLeaseSeconds, " s, and ends here. The job goes on there"));
  }
  change.expects.pop_back();
  return PutHolderAgain(std::move(change));
}

// Somebody has deleted it. Nobody else has had the job as long as this one is sure of it; later
// another may have had it before, of which nothing is left.
absl::Status EtcdJournal::PutHolderAgain(EtcdChange change) {
  const std::string what =
      absl::StrCat("--journal: ", Key("holder"), " of etcd at ", client_->target(), " was deleted");
  if (MonoNow() > sure_until()) {
    return absl::UnavailableError(absl::StrCat(
        what,
        " while this coordinator could not renew its lease, and nothing tells whether another has "
        "taken the job over; if none has, end this one and start it again"));
  }
  change.expects.push_back({Key("holder"), std::nullopt});
  change.puts.push_back({Key("holder"), self_text_});
  ASSIGN_OR_RETURN(const bool is_put, client_->Commit(change));
  return is_put ? absl::OkStatus()
                : absl::UnavailableError(absl::StrCat(what, "; see who deletes it"));
}

absl::Status EtcdJournal::CommitInTurn(EtcdChange change) {
  const std::string step = absl::StrCat(options_.holder_id, " ", ++steps_);
  ASSIGN_OR_RETURN(const std::optional<std::string> last, client_->Get(Key("turn")));
  change.expects.push_back({Key("turn"), last});
  change.puts.push_back({Key("turn"), step});
  absl::Status status = CommitAsHolder(std::move(change));
  if (!absl::IsUnavailable(status)) {
    return status;
  }
  const absl::StatusOr<std::optional<std::string>> turn = client_->Get(Key("turn"));
  return turn.ok() && *turn == step ? absl::OkStatus() : status;
}

void EtcdJournal::BeSureFrom(MonoTime asked_at) {
  sure_until_ = (asked_at + kSureFor).time_since_epoch().count();
}

absl::Status EtcdJournal::Renew() {
  MutexLock lock(mu_);
  const MonoTime asked_at = MonoNow();
  ASSIGN_OR_RETURN(const bool is_renewed, client_->Renew(lease_));
  if (!is_renewed) {
    ASSIGN_OR_RETURN(lease_, client_->Grant(kLeaseSeconds));
  }
  ASSIGN_OR_RETURN(const std::optional<EtcdClient::Entry> alive, client_->Read(Key("alive")));
  const bool is_there = alive.has_value() && alive->value == self_text_ && alive->lease == lease_;
  // Whatever is there, only who has the journal may put its own.
  if (!is_there) {
    RETURN_IF_ERROR(CommitAsHolder({.puts = {{Key("alive"), self_text_, lease_}}}));
  }
  BeSureFrom(asked_at);
  return absl::OkStatus();
}

absl::Status EtcdJournal::Confirm() {
  RETURN_IF_ERROR(Renew());
  ASSIGN_OR_RETURN(const std::optional<std::string> holder, client_->Get(Key("holder")));
  return holder == self_text_ ? absl::OkStatus() : CommitAsHolder({});
}

}  // namespace fsdprun
