#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "fsdpctl/doctor/checks/checks.h"

namespace fsdprun::doctor {
namespace {

/// A variable that is known to hurt. `value`: nullptr for any.
struct VariableRule {
  const char* name;
  const char* value;
  Severity severity;
  const char* why;
};

constexpr VariableRule kVariables[] = {
    {"NCCL_P2P_DISABLE", "1", Severity::kWarning,
     "GPUs of a machine do not read each other's memory: several times slower"},
    {"NCCL_SHM_DISABLE", "1", Severity::kWarning,
     "GPUs of a machine speak through the network: several times slower"},
    {"NCCL_NET_GDR_LEVEL", "LOC", Severity::kWarning,
     "network cards do not read GPUs' memory: slower between nodes"},
    {"NCCL_DEBUG", "TRACE", Severity::kWarning, "each call is logged: slow, and gigabytes of logs"},
    {"NCCL_DEBUG", "INFO", Severity::kNote, "hundreds of lines for each rank at the start"},
    {"NCCL_ALGO", nullptr, Severity::kNote, "NCCL does not choose the fastest by itself"},
    {"NCCL_PROTO", nullptr, Severity::kNote,
     "NCCL does not choose the fastest by itself; LL128 is wrong on some machines"},
    {"NCCL_BUFFSIZE", nullptr, Severity::kNote, "another size of buffers than NCCL's own"},
    {"CUDA_LAUNCH_BLOCKING", "1", Severity::kWarning,
     "the host waits for each kernel: for debugging, several times slower"},
    {"TORCH_DISTRIBUTED_DEBUG", "DETAIL", Severity::kWarning,
     "each collective is checked by further ones: for debugging, slow"},
    {"TORCH_NCCL_BLOCKING_WAIT", "1", Severity::kWarning,
     "the host waits for each collective: nothing overlaps"},
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", Severity::kWarning,
     "ranks hang for ever, instead of failing, when another rank is gone"},
    {"NCCL_ASYNC_ERROR_HANDLING", "0", Severity::kWarning,
     "ranks hang for ever, instead of failing, when another rank is gone"},
};

std::string Value(const NcclFacts& facts, const std::string& name) {
  const auto found = facts.environment.find(name);
  return found == facts.environment.end() ? "" : found->second;
}

void CheckVariables(const NcclFacts& facts, Findings* findings) {
  bool is_quiet = true;
  for (const VariableRule& rule : kVariables) {
    const std::string value = Value(facts, rule.name);
    if (value.empty() || (rule.value != nullptr && !absl::EqualsIgnoreCase(value, rule.value))) {
      continue;
    }
    is_quiet = false;
    findings->Add(rule.severity, "variable",
                  {absl::StrCat(rule.name, "=", value, " is set"), rule.why,
                   absl::StrCat("`unset ", rule.name, "`, unless it is meant")});
  }
  if (is_quiet) {
    findings->Ok("variable", "no variable of NCCL or PyTorch is set that is known to hurt");
  }
}

void CheckInterfaceVariables(const NcclFacts& facts, Findings* findings) {
  std::vector<std::string> known;
  for (const InterfaceFacts& each : facts.interfaces) {
    if (each.is_up) {
      known.push_back(each.name);
    }
  }
  for (const char* name : {"NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"}) {
    const std::string value = Value(facts, name);
    if (value.empty()) {
      continue;
    }
    // Gloo's is one name.
    const bool is_nccl = absl::StartsWith(name, "NCCL");
    if (!NamesAnInterface(is_nccl ? value : absl::StrCat("=", value), facts.interfaces)) {
      findings->Problem("interface",
                        {absl::StrCat(name, "=", value,
                                      ", and no such interface is "
                                      "up here"),
                         "ranks of this machine will not connect",
                         absl::StrCat("choose of ", absl::StrJoin(known, ", "), ", or unset it")});
    } else if (value == "lo" || value == "=lo") {
      findings->Warn("interface",
                     {absl::StrCat(name, "=", value), "ranks of other nodes cannot connect",
                      "name the interface that the other nodes reach, or unset it"});
    } else {
      findings->Ok("interface", absl::StrCat(name, "=", value));
    }
  }
}

bool IsActive(const RdmaPort& port) { return absl::StrContains(port.state, "ACTIVE"); }

std::string PortName(const RdmaPort& port) { return absl::StrCat(port.device, ":", port.port); }

void CheckCardVariable(const NcclFacts& facts, Findings* findings) {
  const std::string value = Value(facts, "NCCL_IB_HCA");
  absl::string_view text = value;
  if (text.empty() || absl::ConsumePrefix(&text, "^")) {
    return;
  }
  const bool is_exact = absl::ConsumePrefix(&text, "=");
  for (const absl::string_view name : absl::StrSplit(text, ',', absl::SkipEmpty())) {
    const bool is_there =
        std::any_of(facts.rdma.begin(), facts.rdma.end(), [&](const RdmaPort& port) {
          return is_exact ? port.device == name || PortName(port) == name
                          : absl::StartsWith(PortName(port), name);
        });
    if (!is_there) {
      findings->Problem("rdma_card", {absl::StrCat("NCCL_IB_HCA names ", std::string(name),
                                                   ", which is not here"),
                                      "NCCL leaves it out, and may use sockets instead",
                                      "see /sys/class/infiniband for the cards' names"});
    }
  }
}

void CheckRdma(const NcclFacts& facts, Findings* findings) {
  if (facts.rdma.empty()) {
    findings->Ok("rdma", "there are no RDMA cards: nodes speak through TCP");
    return;
  }
  std::vector<std::string> active, down;
  for (const RdmaPort& port : facts.rdma) {
    (IsActive(port) ? active : down)
        .push_back(absl::StrCat(PortName(port), " (", IsActive(port) ? port.rate : port.state, ", ",
                                port.link_layer, ")"));
  }
  // Without GPUs NCCL does not run here.
  const Severity severity = facts.has_gpus ? Severity::kWarning : Severity::kNote;
  if (active.empty()) {
    findings->Add(severity, "rdma",
                  {absl::StrCat("no port of an RDMA card is active: ", absl::StrJoin(down, ", ")),
                   "NCCL speaks through TCP instead, many times slower",
                   "look at cables and the switch: `ibstat`, `ibdev2netdev`"});
  } else {
    findings->Ok("rdma", absl::StrCat("RDMA: ", absl::StrJoin(active, ", ")));
    if (!down.empty()) {
      findings->Note("rdma_down",
                     {absl::StrCat("RDMA ports that are not active: ", absl::StrJoin(down, ", ")),
                      "if they should be, that bandwidth is missing",
                      "look at cables and the switch: `ibstat`"});
    }
  }
  if (!facts.has_rdma_nodes) {
    findings->Add(severity, "rdma_nodes",
                  {"there are RDMA cards, but no /dev/infiniband/uverbs*",
                   "NCCL cannot use them, and speaks through TCP",
                   "docker run --device=/dev/infiniband --cap-add=IPC_LOCK; on "
                   "the machine itself `modprobe ib_uverbs`"});
  }
  if (Value(facts, "NCCL_IB_DISABLE") == "1" && facts.has_gpus) {
    findings->Warn("rdma_disabled",
                   {"NCCL_IB_DISABLE=1 is set, and there are RDMA cards",
                    "nodes speak through TCP, many times slower", "`unset NCCL_IB_DISABLE`"});
  }
  CheckCardVariable(facts, findings);
}

std::string VersionText(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int rest = version < 10000 ? version % 1000 : version % 10000;
  return absl::StrCat(major, ".", rest / 100, ".", rest % 100);
}

}  // namespace

std::vector<Finding> CheckNccl(const NcclFacts& facts) {
  Findings findings(CheckGroup::kNccl);
  findings.Ok("library", facts.version == 0 ? "no NCCL on the library path (PyTorch brings its own)"
                                            : absl::StrCat("NCCL ", VersionText(facts.version),
                                                           " on the library path"));
  CheckVariables(facts, &findings);
  CheckInterfaceVariables(facts, &findings);
  CheckRdma(facts, &findings);
  return findings.Take();
}

}  // namespace fsdprun::doctor
