#include "agent/rpc/tls_files.h"

#include <fcntl.h>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/error_text.h"
#include "base/status_macros.h"
#include "base/unique_fd.h"

namespace fsdprun {
namespace {

constexpr size_t kMaxPemBytes = 1u << 20;

template <auto function>
struct Freeing {
  template <class T>
  void operator()(T* object) const {
    function(object);
  }
};
using BioPtr = std::unique_ptr<BIO, Freeing<BIO_free_all>>;
using X509Ptr = std::unique_ptr<X509, Freeing<X509_free>>;
using KeyPtr = std::unique_ptr<EVP_PKEY, Freeing<EVP_PKEY_free>>;
using StorePtr = std::unique_ptr<X509_STORE, Freeing<X509_STORE_free>>;
using ContextPtr = std::unique_ptr<X509_STORE_CTX, Freeing<X509_STORE_CTX_free>>;

void FreeChain(STACK_OF(X509) * chain) { sk_X509_free(chain); }
using ChainPtr = std::unique_ptr<STACK_OF(X509), Freeing<FreeChain>>;

absl::Status Wrong(absl::string_view option, absl::string_view path, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(option, ": '", path, "' ", what));
}

BioPtr ToBio(absl::string_view text) {
  return BioPtr(::BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

std::vector<X509Ptr> ParseCertificates(absl::string_view pem) {
  const BioPtr bio = ToBio(pem);
  std::vector<X509Ptr> certificates;
  while (X509* next = ::PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(next);
  }
  ::ERR_clear_error();  // The end of the text is an error, too.
  return certificates;
}

// Nobody is asked for a passphrase.
int NoPassphrase(char*, int, int, void*) { return -1; }

std::string TimeText(const ASN1_TIME* time) {
  const BioPtr bio(::BIO_new(::BIO_s_mem()));
  ::ASN1_TIME_print(bio.get(), time);
  char* text = nullptr;
  const auto size = ::BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

std::string SubjectText(X509* certificate) {
  const BioPtr bio(::BIO_new(::BIO_s_mem()));
  ::X509_NAME_print_ex(bio.get(), ::X509_get_subject_name(certificate), 0,
                       XN_FLAG_ONELINE & ~ASN1_STRFLGS_ESC_MSB);
  char* text = nullptr;
  const auto size = ::BIO_get_mem_data(bio.get(), &text);
  return {text, static_cast<size_t>(size)};
}

std::string AddressText(const ASN1_OCTET_STRING* address) {
  const unsigned char* bytes = ::ASN1_STRING_get0_data(address);
  const int size = ::ASN1_STRING_length(address);
  if (size == 4) {
    return absl::StrCat(bytes[0], ".", bytes[1], ".", bytes[2], ".", bytes[3]);
  }
  std::vector<std::string> groups;
  for (int i = 0; i + 1 < size; i += 2) {
    groups.push_back(absl::StrCat(absl::Hex(bytes[i] * 256 + bytes[i + 1])));
  }
  return absl::StrJoin(groups, ":");
}

// The names that a certificate is for, as `a, b, 10.0.0.1`.
std::string NamesText(const X509* certificate) {
  auto* names = static_cast<GENERAL_NAMES*>(
      ::X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr));
  std::vector<std::string> texts;
  for (int i = 0; i < sk_GENERAL_NAME_num(names); ++i) {
    const GENERAL_NAME* name = sk_GENERAL_NAME_value(names, i);
    if (name->type == GEN_DNS) {
      texts.emplace_back(reinterpret_cast<const char*>(::ASN1_STRING_get0_data(name->d.dNSName)),
                         static_cast<size_t>(::ASN1_STRING_length(name->d.dNSName)));
    } else if (name->type == GEN_IPADD) {
      texts.push_back(AddressText(name->d.iPAddress));
    }
  }
  ::GENERAL_NAMES_free(names);
  return texts.empty() ? "no host name or address" : absl::StrJoin(texts, ", ");
}

absl::StatusOr<std::string> ReadPemFile(absl::string_view option, const std::string& path,
                                        bool is_secret) {
  // Opening a pipe must not wait for its other end.
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  if (!file.valid()) {
    return Wrong(option, path, absl::StrCat("cannot be opened: ", ErrorText(errno)));
  }
  struct stat info {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return Wrong(option, path, "is no file");
  }
  if (is_secret && (info.st_mode & 07) != 0) {
    return Wrong(option, path,
                 "can be read or written by every user of this machine, so the key protects "
                 "nothing; chmod 600 it");
  }
  std::string text;
  char buffer[8192];
  ssize_t n = 0;
  while ((n = ::read(file.get(), buffer, sizeof(buffer))) > 0 && text.size() <= kMaxPemBytes) {
    text.append(buffer, static_cast<size_t>(n));
  }
  if (n < 0 || text.size() > kMaxPemBytes) {
    return Wrong(option, path,
                 n < 0 ? absl::StrCat("cannot be read: ", ErrorText(errno))
                       : "is longer than 1 MiB, which is no certificate or key");
  }
  return text;
}

absl::Status CheckCertificate(const TlsFiles& files, const TlsContent& content) {
  const std::vector<X509Ptr> chain = ParseCertificates(content.certificate);
  if (chain.empty()) {
    return Wrong("--tls-cert", files.certificate, "has no certificate in PEM");
  }
  X509* own = chain.front().get();
  if (::X509_cmp_current_time(::X509_get0_notAfter(own)) < 0) {
    return Wrong("--tls-cert", files.certificate,
                 absl::StrCat("expired on ", TimeText(::X509_get0_notAfter(own))));
  }
  if (::X509_cmp_current_time(::X509_get0_notBefore(own)) > 0) {
    return Wrong("--tls-cert", files.certificate,
                 absl::StrCat("is not valid before ", TimeText(::X509_get0_notBefore(own)),
                              ", by this machine's clock"));
  }
  const BioPtr bio = ToBio(content.key);
  const KeyPtr key(::PEM_read_bio_PrivateKey(bio.get(), nullptr, NoPassphrase, nullptr));
  const bool fits = key != nullptr && ::X509_check_private_key(own, key.get()) == 1;
  ::ERR_clear_error();
  if (key == nullptr) {
    return Wrong("--tls-key", files.key, "has no private key in PEM without a passphrase");
  }
  return fits ? absl::OkStatus()
              : Wrong("--tls-key", files.key,
                      absl::StrCat("is not the key of the certificate '", files.certificate, "'"));
}

StorePtr TrustedOf(const std::string& ca) {
  StorePtr store(::X509_STORE_new());
  if (ca.empty()) {
    ::X509_STORE_set_default_paths(store.get());
    return store;
  }
  for (const X509Ptr& certificate : ParseCertificates(ca)) {
    ::X509_STORE_add_cert(store.get(), certificate.get());
  }
  return store;
}

// Only names of the subjectAltName count, as RFC 9525 has it.
void Demand(X509_VERIFY_PARAM* demands, const std::string& name) {
  if (::X509_VERIFY_PARAM_set1_ip_asc(demands, name.c_str()) == 1) {
    return;
  }
  ::ERR_clear_error();
  ::X509_VERIFY_PARAM_set_hostflags(
      demands, X509_CHECK_FLAG_NEVER_CHECK_SUBJECT | X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  ::X509_VERIFY_PARAM_set1_host(demands, name.c_str(), name.size());
}

std::string ReasonText(int error, X509* own, const std::string& name) {
  switch (error) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
      return absl::StrCat("it is for ", NamesText(own), ", not for ", name);
    case X509_V_ERR_CERT_HAS_EXPIRED:
      return absl::StrCat("expired, its own validity ended on ",
                          TimeText(::X509_get0_notAfter(own)));
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
      return absl::StrCat("no CA that is trusted here has issued it (",
                          ::X509_verify_cert_error_string(error), ")");
    default:
      return ::X509_verify_cert_error_string(error);
  }
}

}  // namespace

absl::StatusOr<TlsContent> LoadTls(const TlsFiles& files) {
  TlsContent content;
  if (!files.certificate.empty()) {
    ASSIGN_OR_RETURN(content.certificate, ReadPemFile("--tls-cert", files.certificate, false));
    ASSIGN_OR_RETURN(content.key, ReadPemFile("--tls-key", files.key, true));
    RETURN_IF_ERROR(CheckCertificate(files, content));
  }
  if (!files.ca.empty()) {
    ASSIGN_OR_RETURN(content.ca, ReadPemFile("--tls-ca", files.ca, false));
    if (ParseCertificates(content.ca).empty()) {
      return Wrong("--tls-ca", files.ca, "has no certificate in PEM");
    }
  }
  return content;
}

absl::Status VerifyCertificate(const TlsChain& shown, const std::string& ca, TlsPeer peer,
                               const std::string& name) {
  const bool is_coordinator = peer == TlsPeer::kCoordinator;
  const std::vector<X509Ptr> first = ParseCertificates(shown.certificate);
  const std::vector<X509Ptr> others = ParseCertificates(shown.others);
  if (first.empty()) {
    return absl::PermissionDeniedError(is_coordinator ? "the coordinator has shown no certificate"
                                                      : "the agent has shown no certificate");
  }
  const ChainPtr untrusted(sk_X509_new_null());
  for (const X509Ptr& certificate : others) {
    sk_X509_push(untrusted.get(), certificate.get());
  }
  X509* own = first.front().get();
  const StorePtr trusted = TrustedOf(ca);
  const ContextPtr context(::X509_STORE_CTX_new());
  int error = X509_V_ERR_UNSPECIFIED;
  if (::X509_STORE_CTX_init(context.get(), trusted.get(), own, untrusted.get()) == 1) {
    ::X509_STORE_CTX_set_default(context.get(), is_coordinator ? "ssl_server" : "ssl_client");
    if (!name.empty()) {
      Demand(::X509_STORE_CTX_get0_param(context.get()), name);
    }
    if (::X509_verify_cert(context.get()) == 1) {
      return absl::OkStatus();
    }
    error = ::X509_STORE_CTX_get_error(context.get());
  }
  ::ERR_clear_error();
  return absl::PermissionDeniedError(
      absl::StrCat("the certificate of the ", is_coordinator ? "coordinator" : "agent", " (",
                   SubjectText(own), ") is not accepted: ", ReasonText(error, own, name)));
}

}  // namespace fsdprun
