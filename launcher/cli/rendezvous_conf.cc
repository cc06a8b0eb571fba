#include "launcher/cli/rendezvous_conf.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "launcher/cli/option_values.h"

namespace fsdprun {
namespace {

constexpr std::chrono::milliseconds kKeepAliveInterval{5'000};
constexpr int kKeepAliveAttempts = 3;
constexpr int kMaxAttempts = 1'000'000;
constexpr char kAttemptsExpected[] = "a number from 1 to 1000000";

/// Keys and values, with the option or variable in front of the key for messages.
class Conf {
 public:
  static absl::StatusOr<Conf> Parse(const RawValue& value) {
    Conf conf;
    if (absl::StripAsciiWhitespace(value.text).empty()) {
      return conf;
    }
    for (const absl::string_view item : absl::StrSplit(value.text, ',')) {
      const std::pair<absl::string_view, absl::string_view> pair =
          absl::StrSplit(item, absl::MaxSplits('=', 1));
      const absl::string_view key = absl::StripAsciiWhitespace(pair.first);
      const absl::string_view text = absl::StripAsciiWhitespace(pair.second);
      if (key.empty() || text.empty()) {
        return InvalidValue(value, "a list key=value,key=value");
      }
      conf.values_[std::string(key)] = {absl::StrCat(value.source, " ", key), std::string(text)};
    }
    return conf;
  }

  const RawValue* Find(const char* key) const {
    const auto it = values_.find(key);
    return it == values_.end() ? nullptr : &it->second;
  }
  /// Leaves `*seconds` alone if the key is not there.
  absl::Status ReadSeconds(const char* key, bool zero_allowed,
                           std::chrono::milliseconds* seconds) const {
    if (const RawValue* value = Find(key)) {
      ASSIGN_OR_RETURN(*seconds, ToSeconds(*value, zero_allowed));
    }
    return absl::OkStatus();
  }
  void ReadText(const char* key, std::string* text) const {
    if (const RawValue* value = Find(key)) {
      *text = value->text;
    }
  }

 private:
  std::map<std::string, RawValue> values_;
};

absl::Status ReadTimeouts(const Conf& conf, LaunchPlan* plan) {
  // torchrun's handlers of these two backends know one timeout only.
  if (plan->backend != RendezvousBackend::kC10d) {
    RETURN_IF_ERROR(conf.ReadSeconds("timeout", false, &plan->join_timeout));
  }
  RETURN_IF_ERROR(conf.ReadSeconds("join_timeout", false, &plan->join_timeout));
  RETURN_IF_ERROR(conf.ReadSeconds("last_call_timeout", true, &plan->last_call_timeout));
  std::chrono::milliseconds unused{};
  RETURN_IF_ERROR(conf.ReadSeconds("close_timeout", false, &unused));
  RETURN_IF_ERROR(conf.ReadSeconds("heartbeat_timeout", false, &unused));
  if (conf.Find("read_timeout") != nullptr) {
    RETURN_IF_ERROR(conf.ReadSeconds("read_timeout", false, &plan->read_timeout.emplace()));
  }
  const RawValue* attempts = conf.Find("keep_alive_max_attempt");
  if (attempts == nullptr && conf.Find("keep_alive_interval") == nullptr) {
    return absl::OkStatus();
  }
  std::chrono::milliseconds interval = kKeepAliveInterval;
  RETURN_IF_ERROR(conf.ReadSeconds("keep_alive_interval", false, &interval));
  int count = kKeepAliveAttempts;
  if (attempts != nullptr) {
    ASSIGN_OR_RETURN(count, ToInt(*attempts, 1, kAttemptsExpected));
    if (count > kMaxAttempts) {
      return InvalidValue(*attempts, kAttemptsExpected);
    }
  }
  plan->node_lease = interval * count;
  return absl::OkStatus();
}

absl::Status ReadHost(const Conf& conf, LaunchPlan* plan) {
  if (plan->backend == RendezvousBackend::kStatic) {
    return absl::OkStatus();
  }
  if (const RawValue* value = conf.Find("is_host")) {
    ASSIGN_OR_RETURN(plan->is_host, ToBool(*value));
  }
  if (plan->backend == RendezvousBackend::kEtcd) {
    // Who claims the run id first hosts; who must not may be told so.
    plan->is_host = plan->is_host == false ? plan->is_host : std::nullopt;
    return absl::OkStatus();
  }
  if (const RawValue* value = conf.Find("store_type")) {
    ASSIGN_OR_RETURN(const std::string type,
                     ToWord({value->source, absl::AsciiStrToLower(value->text)}, {"tcp", "file"}));
    plan->uses_file = type == "file";
  }
  return absl::OkStatus();
}

absl::Status ReadEtcd(const Conf& conf, LaunchPlan* plan) {
  if (plan->backend != RendezvousBackend::kEtcd && plan->journal.etcd.empty()) {
    return absl::OkStatus();
  }
  EtcdOptions& etcd = plan->etcd;
  if (const RawValue* value = conf.Find("protocol")) {
    ASSIGN_OR_RETURN(const std::string protocol, ToWord(*value, {"http", "https"}));
    etcd.uses_tls = protocol == "https";
  }
  // The names of etcd's and of etcd-v2's handler.
  for (const auto& [key, text] :
       {std::pair("ca_cert", &etcd.ca_file), std::pair("cacert", &etcd.ca_file),
        std::pair("ssl_cert", &etcd.certificate_file), std::pair("cert", &etcd.certificate_file),
        std::pair("ssl_cert_key", &etcd.key_file), std::pair("key", &etcd.key_file),
        std::pair("etcd_prefix", &etcd.prefix)}) {
    conf.ReadText(key, text);
  }
  etcd.prefix = absl::StrCat("/", absl::StripPrefix(absl::StripSuffix(etcd.prefix, "/"), "/"));
  if (etcd.certificate_file.empty() != etcd.key_file.empty()) {
    return absl::OutOfRangeError(
        "--rdzv-conf: etcd's certificate and its key are given together or not at all");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadRendezvousConf(const RawValue& value, LaunchPlan* plan) {
  ASSIGN_OR_RETURN(const Conf conf, Conf::Parse(value));
  RETURN_IF_ERROR(ReadTimeouts(conf, plan));
  RETURN_IF_ERROR(ReadHost(conf, plan));
  return ReadEtcd(conf, plan);
}

}  // namespace fsdprun
