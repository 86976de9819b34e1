// Objects in a bucket, by libcurl. Addresses are ENDPOINT/BUCKET/KEY, which every server that speaks
// S3 understands.
#include <curl/curl.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <mutex>

#include "server/store/object_store.h"
#include "server/store/sigv4.h"

namespace bam {

namespace {

struct S3Place {
  std::string bucket, prefix, endpoint;
  S3Credentials credentials;  // without an id: requests are not signed
};

std::string environment(std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (const char* value = std::getenv(name); value && *value) return value;
  }
  return {};
}

struct Receiver {
  std::vector<std::byte>* out = nullptr;
  size_t max_bytes = 0;
  std::string error;  // the beginning of what a failed request brought
};

size_t receive(char* data, size_t size, size_t count, void* into) {
  auto& receiver = *static_cast<Receiver*>(into);
  const size_t bytes = size * count;
  if (receiver.error.size() < 4096) receiver.error.append(data, std::min<size_t>(bytes, 4096));
  if (!receiver.out) return bytes;
  const size_t room = receiver.max_bytes + 1 - receiver.out->size();
  const auto* first = reinterpret_cast<const std::byte*>(data);
  receiver.out->insert(receiver.out->end(), first, first + std::min(bytes, room));
  return bytes <= room ? bytes : 0;  // breaks off
}

// <Code>NoSuchBucket</Code>
std::string code_of(const std::string& xml) {
  const size_t begin = xml.find("<Code>"), end = xml.find("</Code>");
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return " (" + xml.substr(begin + 6, std::min<size_t>(end - begin - 6, 64)) + ")";
}

class S3Store final : public ObjectStore {
 public:
  explicit S3Store(S3Place place) : place_(std::move(place)) {
    static std::once_flag once;
    std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
    curl_.reset(curl_easy_init());
    if (!curl_) throw Error("libcurl could not be started");
  }

  bool has(const std::string& key, Deadline deadline) override {
    return request("HEAD", key, {}, nullptr, 0, deadline);
  }

  bool get(const std::string& key, size_t max_bytes, std::vector<std::byte>& out, Deadline deadline) override {
    out.clear();
    return request("GET", key, {}, &out, max_bytes, deadline);
  }

  void put(const std::string& key, std::span<const std::byte> object, Deadline deadline) override {
    if (!request("PUT", key, object, nullptr, 0, deadline)) {
      throw StoreError("s3: the bucket {} does not exist at {}", place_.bucket, place_.endpoint);
    }
  }

  void remove(const std::string& key, Deadline deadline) override { request("DELETE", key, {}, nullptr, 0, deadline); }

 private:
  using Headers = std::unique_ptr<curl_slist, decltype([](curl_slist* list) { curl_slist_free_all(list); })>;

  static void add(Headers& headers, const std::string& line) {
    curl_slist* longer = curl_slist_append(headers.get(), line.c_str());
    if (!longer) throw StoreError("s3: out of memory");
    headers.release();
    headers.reset(longer);
  }

  // False: 404.
  bool request(const char* method, const std::string& key, std::span<const std::byte> body, std::vector<std::byte>* out,
               size_t max_bytes, Deadline deadline) {
    CURL* curl = curl_.get();
    curl_easy_reset(curl);  // the connection stays
    const std::string path = fmt::format("/{}/{}{}", place_.bucket, place_.prefix, key), url = place_.endpoint + path;
    Receiver receiver{out, max_bytes, {}};
    Headers headers;
    add(headers, "Expect:");
    if (!place_.credentials.id.empty()) {
      const std::string host = place_.endpoint.substr(place_.endpoint.find("://") + 3);
      const S3Request signed_request{method, host, path, "", request_date(), body};
      for (const std::string& line : sign_request(place_.credentials, signed_request)) add(headers, line);
    }
    curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
    curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl, CURLOPT_TIMEOUT_MS, milliseconds_left(deadline));
    curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, receive);
    curl_easy_setopt(curl, CURLOPT_WRITEDATA, &receiver);
    const std::string_view verb = method;
    if (verb == "HEAD") curl_easy_setopt(curl, CURLOPT_NOBODY, 1L);
    if (verb == "PUT") {
      add(headers, "Content-Type: application/octet-stream");
      curl_easy_setopt(curl, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
      curl_easy_setopt(curl, CURLOPT_POSTFIELDS, body.data());
    }
    if (verb == "PUT" || verb == "DELETE") curl_easy_setopt(curl, CURLOPT_CUSTOMREQUEST, method);
    curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
    const CURLcode code = curl_easy_perform(curl);
    long status = 0;
    curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
    const bool too_large = code == CURLE_WRITE_ERROR && out && out->size() > max_bytes;
    if (code != CURLE_OK && !too_large) throw StoreError("s3 {}: {}", place_.endpoint, curl_easy_strerror(code));
    if (status == 404) return false;
    if (status < 200 || status > 299) {
      throw StoreError("s3 {}: {} of an object gave {}{}", place_.endpoint, method, status, code_of(receiver.error));
    }
    return true;
  }

  const S3Place place_;
  std::unique_ptr<CURL, decltype([](CURL* c) { curl_easy_cleanup(c); })> curl_;
};

}  // namespace

std::unique_ptr<ObjectStore> open_s3_store(const std::string& text) {
  S3Place place;
  const size_t slash = text.find('/');
  place.bucket = text.substr(0, slash);
  if (slash != std::string::npos) place.prefix = text.substr(slash + 1);
  while (place.prefix.ends_with('/')) place.prefix.pop_back();
  if (!place.prefix.empty()) place.prefix += '/';
  for (const char c : place.bucket + place.prefix) {
    const bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '_' || c == '/';
    if (!plain) throw UsageError("--kv-store: s3:BUCKET[/PREFIX] has letters, digits and . - _ / only");
  }
  if (place.bucket.empty()) throw UsageError("--kv-store: s3:BUCKET[/PREFIX] needs a bucket");
  S3Credentials& own = place.credentials;
  own.region = environment({"AWS_REGION", "AWS_DEFAULT_REGION"});
  if (own.region.empty()) own.region = "us-east-1";
  place.endpoint = environment({"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"});
  if (place.endpoint.empty()) place.endpoint = fmt::format("https://s3.{}.amazonaws.com", own.region);
  while (place.endpoint.ends_with('/')) place.endpoint.pop_back();
  const std::string host = place.endpoint.substr(std::min(place.endpoint.find("://") + 3, place.endpoint.size()));
  if (!place.endpoint.starts_with("http") || host.empty() || host.find('/') != std::string::npos) {
    throw UsageError("--kv-store s3: AWS_ENDPOINT_URL: '{}' is not http(s)://HOST[:PORT]", place.endpoint);
  }
  own.id = environment({"AWS_ACCESS_KEY_ID"});
  own.secret = environment({"AWS_SECRET_ACCESS_KEY"});
  own.session_token = environment({"AWS_SESSION_TOKEN"});
  if (own.id.empty() != own.secret.empty()) {
    throw UsageError("--kv-store s3: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together");
  }
  return std::make_unique<S3Store>(std::move(place));
}

}  // namespace bam
