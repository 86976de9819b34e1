#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace bam {

// Work that a client started and that can be ended before it is done. Any thread.
class LiveJob {
 public:
  virtual ~LiveJob() = default;
  virtual void cancel() = 0;
  // The id of its reply.
  virtual const std::string& id() const = 0;
};

// Jobs in progress, by reply id and by request id; names of one tenant mean nothing to another. Any thread.
class LiveJobs {
 public:
  // False when one of the names is taken.
  bool add(const std::string& tenant, const std::string& id, const std::string& request_id,
           const std::shared_ptr<LiveJob>& job);
  void remove(const std::string& tenant, const std::string& id, const std::string& request_id);
  std::shared_ptr<LiveJob> find(const std::string& tenant, const std::string& name) const;
  // Whosever it is: for the admin.
  std::shared_ptr<LiveJob> find_any(const std::string& name) const;
  std::vector<std::shared_ptr<LiveJob>> all() const;
  size_t size() const;

  // The name of a tenant's request in the engine. Neither names nor tenants have a slash.
  static std::string engine_name(const std::string& tenant, const std::string& id) {
    return tenant.empty() ? id : tenant + "/" + id;
  }
  static bool belongs_to(std::string_view engine_name, std::string_view tenant) {
    const size_t slash = engine_name.find('/');
    return (slash == std::string_view::npos ? std::string_view() : engine_name.substr(0, slash)) == tenant;
  }
  static std::string_view shown_name(std::string_view engine_name) {
    return engine_name.substr(engine_name.find('/') + 1);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<LiveJob> find_named(const std::string& engine_name) const;  // with the lock held

  // By engine_name() of the reply id, and from that of the request id to it.
  std::unordered_map<std::string, std::weak_ptr<LiveJob>> by_id_;
  std::unordered_map<std::string, std::string> id_of_request_;
};

}  // namespace bam
