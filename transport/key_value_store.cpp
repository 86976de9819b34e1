#include "transport/key_value_store.h"

#include <unistd.h>

#include <atomic>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <vector>

#ifdef BAM_HAVE_HIREDIS
#include <hiredis/hiredis.h>
#include <sys/time.h>
#endif

namespace bam {

namespace fs = std::filesystem;

namespace {

// Keys become file names: whatever is not plain is written as %XX.
std::string file_name_of(const std::string& key) {
  std::string name;
  for (const char c : key) {
    if ((c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_') {
      name += c;
    } else {
      name += fmt::format("%{:02x}", static_cast<unsigned char>(c));
    }
  }
  return name;
}

class FolderStore : public KeyValueStore {
 public:
  explicit FolderStore(fs::path folder) : folder_(std::move(folder)) {
    std::error_code error;
    fs::create_directories(folder_, error);
    if (!fs::is_directory(folder_))
      throw StoreUnreachable("--rendezvous: {} cannot be used as a folder", folder_.string());
  }

  void put(const std::string& key, const std::string& value) override {
    static std::atomic<uint64_t> count{0};
    const fs::path to = folder_ / file_name_of(key);
    // A dot cannot be part of a key's name.
    const fs::path from = fmt::format("{}.{}.{}", to.string(), getpid(), count++);
    std::ofstream file(from, std::ios::binary);
    file.write(value.data(), static_cast<std::streamsize>(value.size()));
    file.close();
    std::error_code error;
    if (file) fs::rename(from, to, error);
    if (!file || error) throw StoreUnreachable("--rendezvous: {} cannot be written", to.string());
  }

  std::optional<std::string> get(const std::string& key) override {
    std::ifstream file(folder_ / file_name_of(key), std::ios::binary);
    if (!file) return std::nullopt;
    return std::string(std::istreambuf_iterator<char>(file), {});
  }

  void remove_all(const std::string& prefix) override {
    const std::string begin = file_name_of(prefix);
    std::error_code error;
    std::vector<fs::path> found;
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      if (entry.path().filename().string().starts_with(begin)) found.push_back(entry.path());
    }
    for (const fs::path& path : found) fs::remove(path, error);
  }

 private:
  fs::path folder_;
};

#ifdef BAM_HAVE_HIREDIS

class RedisStore : public KeyValueStore {
 public:
  RedisStore(std::string host, int port, std::string name)
      : host_(std::move(host)), port_(port), prefix_(std::move(name) + ":") {
    connect();
  }

  void put(const std::string& key, const std::string& value) override {
    const std::string full = prefix_ + key;
    // Notes of groups that ended without tidying up do not stay for ever.
    command("SET %b %b EX 86400", full.data(), full.size(), value.data(), value.size());
  }

  std::optional<std::string> get(const std::string& key) override {
    const std::string full = prefix_ + key;
    const Reply reply = command("GET %b", full.data(), full.size());
    if (reply->type != REDIS_REPLY_STRING) return std::nullopt;
    return std::string(reply->str, reply->len);
  }

  void remove_all(const std::string& prefix) override {
    const std::string pattern = prefix_ + prefix + "*";
    std::string cursor = "0";
    do {
      const Reply reply = command("SCAN %s MATCH %b COUNT 100", cursor.c_str(), pattern.data(), pattern.size());
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) return;
      cursor = reply->element[0]->str;
      for (size_t i = 0; i < reply->element[1]->elements; ++i) {
        const redisReply* found = reply->element[1]->element[i];
        command("DEL %b", found->str, found->len);
      }
    } while (cursor != "0");
  }

 private:
  using Reply = std::unique_ptr<redisReply, decltype([](redisReply* r) { freeReplyObject(r); })>;
  static constexpr timeval kTimeout{5, 0};

  void connect() {
    redis_.reset(redisConnectWithTimeout(host_.c_str(), port_, kTimeout));
    if (!redis_ || redis_->err != 0) {
      const std::string why = redis_ ? redis_->errstr : "out of memory";
      redis_.reset();  // the next call connects again
      throw StoreUnreachable("--rendezvous: the Redis server at {}:{} cannot be reached: {}", host_, port_, why);
    }
    redisSetTimeout(redis_.get(), kTimeout);
  }

  template <typename... Args>
  Reply command(const char* format, Args... args) {
    const std::lock_guard lock(mutex_);
    if (!redis_) connect();
    Reply reply(static_cast<redisReply*>(redisCommand(redis_.get(), format, args...)));
    if (!reply) {
      const std::string why = redis_->errstr;
      redis_.reset();  // the next call connects again
      throw StoreUnreachable("--rendezvous: the Redis server at {}:{}: {}", host_, port_, why);
    }
    if (reply->type == REDIS_REPLY_ERROR) throw Error("--rendezvous: the Redis server says: {}", reply->str);
    return reply;
  }

  std::string host_;
  int port_;
  std::string prefix_;
  std::mutex mutex_;
  std::unique_ptr<redisContext, decltype([](redisContext* c) { redisFree(c); })> redis_;
};

std::unique_ptr<KeyValueStore> open_redis(std::string place) {
  std::string name = "bam";
  int port = 6379;
  if (const size_t slash = place.find('/'); slash != std::string::npos) {
    name = place.substr(slash + 1);
    place.resize(slash);
  }
  if (const size_t colon = place.rfind(':'); colon != std::string::npos) {
    const char* end = place.data() + place.size();
    const auto [stop, status] = std::from_chars(place.data() + colon + 1, end, port);
    if (status != std::errc() || stop != end || port <= 0 || port > 65535) {
      throw UsageError("--rendezvous: '{}' has no valid port", place);
    }
    place.resize(colon);
  }
  if (place.empty() || name.empty()) throw UsageError("--rendezvous redis:HOST[:PORT][/NAME] needs a host");
  return std::make_unique<RedisStore>(place, port, name);
}

#else

std::unique_ptr<KeyValueStore> open_redis(const std::string&) {
  throw Error("--rendezvous redis: this program was built without it; `make cluster` installs what it needs");
}

#endif

}  // namespace

std::unique_ptr<KeyValueStore> open_store(const std::string& rendezvous) {
  if (rendezvous.starts_with("file:") && rendezvous.size() > 5) {
    return std::make_unique<FolderStore>(rendezvous.substr(5));
  }
  if (rendezvous.starts_with("redis:")) return open_redis(rendezvous.substr(6));
  throw UsageError("--rendezvous: '{}' is neither file:DIR nor redis:HOST[:PORT][/NAME]", rendezvous);
}

}  // namespace bam
