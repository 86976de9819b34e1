#include <cstdlib>
#include <cstring>
#include <optional>

#include "server/store/object_store.h"

#ifdef BAM_HAVE_HIREDIS
#include <hiredis/hiredis.h>
#endif

namespace bam {

#ifdef BAM_HAVE_HIREDIS

namespace {

class RedisStore final : public ObjectStore {
 public:
  RedisStore(std::string host, int port, std::string name)
      : host_(std::move(host)), port_(port), name_(std::move(name)) {}

  bool has(const std::string& key, Deadline deadline) override {
    const std::string full = name_of(key);
    return ask(deadline, "EXISTS %b", full.data(), full.size())->integer == 1;
  }

  bool get(const std::string& key, size_t max_bytes, std::vector<std::byte>& out, Deadline deadline) override {
    const std::string full = name_of(key), end = std::to_string(max_bytes);
    // One that is too large is not fetched as a whole; a missing one is empty, and no object is.
    const Reply reply = ask(deadline, "GETRANGE %b 0 %s", full.data(), full.size(), end.c_str());
    if (reply->type != REDIS_REPLY_STRING || reply->len == 0) return false;
    out.resize(reply->len);
    std::memcpy(out.data(), reply->str, reply->len);
    return true;
  }

  void put(const std::string& key, std::span<const std::byte> object, Deadline deadline) override {
    const std::string full = name_of(key);
    ask(deadline, "SET %b %b", full.data(), full.size(), object.data(), object.size());
  }

  void remove(const std::string& key, Deadline deadline) override {
    const std::string full = name_of(key);
    ask(deadline, "DEL %b", full.data(), full.size());
  }

 private:
  using Reply = std::unique_ptr<redisReply, decltype([](redisReply* r) { freeReplyObject(r); })>;

  std::string name_of(const std::string& key) const { return name_ + ":" + key; }

  static timeval time_left(Deadline deadline) {
    const int64_t ms = milliseconds_left(deadline);
    return {ms / 1000, ms % 1000 * 1000};
  }

  void connect(Deadline deadline) {
    redis_.reset(redisConnectWithTimeout(host_.c_str(), port_, time_left(deadline)));
    if (!redis_ || redis_->err != 0) {
      const std::string why = redis_ ? redis_->errstr : "out of memory";
      redis_.reset();
      throw StoreError("redis {}:{}: {}", host_, port_, why);
    }
    redisEnableKeepAlive(redis_.get());
    // As redis-cli does.
    if (const char* password = std::getenv("REDISCLI_AUTH"); password && *password) send(deadline, "AUTH %s", password);
  }

  template <typename... Args>
  Reply ask(Deadline deadline, const char* format, Args... args) {
    if (!redis_) connect(deadline);
    return send(deadline, format, args...);
  }

  template <typename... Args>
  Reply send(Deadline deadline, const char* format, Args... args) {
    redisSetTimeout(redis_.get(), time_left(deadline));
    Reply reply(static_cast<redisReply*>(redisCommand(redis_.get(), format, args...)));
    if (reply && reply->type != REDIS_REPLY_ERROR) return reply;
    const std::string why = reply ? reply->str : redis_->errstr;
    redis_.reset();  // a late answer must not be taken for the next one
    throw StoreError("redis {}:{}: {}", host_, port_, why);
  }

  const std::string host_;
  const int port_;
  const std::string name_;
  std::unique_ptr<redisContext, decltype([](redisContext* c) { redisFree(c); })> redis_;
};

}  // namespace

std::unique_ptr<ObjectStore> open_redis_store(const std::string& place) {
  const size_t slash = place.find('/');
  std::string host = place.substr(0, slash), name = slash == std::string::npos ? "bam" : place.substr(slash + 1);
  int port = 6379;
  if (const size_t colon = host.rfind(':'); colon != std::string::npos) {
    char* end = nullptr;
    const long number = std::strtol(host.c_str() + colon + 1, &end, 10);
    if (*end != '\0' || number < 1 || number > 65535) throw UsageError("--kv-store: redis:{} has no such port", place);
    port = static_cast<int>(number);
    host.resize(colon);
  }
  if (host.empty() || name.empty()) throw UsageError("--kv-store: redis:HOST[:PORT][/NAME] needs a host");
  return std::make_unique<RedisStore>(std::move(host), port, std::move(name));
}

#else

std::unique_ptr<ObjectStore> open_redis_store(const std::string&) {
  throw UsageError("--kv-store redis: this program was built without it; `make cluster` installs what it needs");
}

#endif

}  // namespace bam
