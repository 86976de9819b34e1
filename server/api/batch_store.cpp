#include "server/api/batch_store.h"

#include <charconv>
#include <chrono>
#include <fstream>
#include <iterator>
#include <unordered_set>

#include <fmt/format.h>

#include "base/log.h"

namespace bam {

namespace {

namespace fs = std::filesystem;

// Metadata stays in memory as long as its batch is listed.
constexpr size_t kMaxMetadataBytes = 16 * 1024;
constexpr int64_t kMaxWindowSeconds = 365 * 86400;

int64_t unix_seconds() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string read_file(const fs::path& path) {
  if (!fs::is_regular_file(path)) throw Error("{} is not a regular file", path.string());  // a pipe would wait for ever
  std::ifstream in(path, std::ios::binary);
  if (!in) throw Error("cannot read {}", path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// A name has the whole content or none of it.
void write_file(const fs::path& path, std::string_view content) {
  const fs::path draft = path.string() + ".part";
  std::ofstream out(draft, std::ios::binary | std::ios::trunc);
  out.write(content.data(), static_cast<std::streamsize>(content.size()));
  out.close();
  if (!out) {
    std::error_code ignored;
    fs::remove(draft, ignored);  // it takes the room that was too little
    throw Error("cannot write {}", draft.string());
  }
  fs::rename(draft, path);
}

// "24h", "90m", "30s", "7d": seconds; nothing when it is no such time.
std::optional<int64_t> seconds_of(std::string_view window) {
  int64_t count = 0;
  const auto [end, error] = std::from_chars(window.data(), window.data() + window.size(), count);
  const std::string_view unit(end, static_cast<size_t>(window.data() + window.size() - end));
  const int64_t seconds = unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : unit == "d" ? 86400 : 0;
  if (error != std::errc() || seconds == 0 || count < 1 || count > kMaxWindowSeconds / seconds) return std::nullopt;
  return count * seconds;
}

// Ids of the results that a process has left; half a line is cut off.
void read_results(const fs::path& path, std::unordered_set<std::string>& ids) {
  if (!fs::exists(path)) return;
  const std::string text = read_file(path);
  const size_t whole = text.rfind('\n') + 1;  // npos + 1 is 0
  if (whole != text.size()) fs::resize_file(path, whole);
  for (size_t at = 0, end; at < whole; at = end + 1) {
    end = text.find('\n', at);
    ids.insert(custom_id_of(std::string_view(text).substr(at, end - at)));
  }
}

bool is_open(const Json& batch) { return batch["status"] == "in_progress" || batch["status"] == "cancelling"; }

}  // namespace

BatchStore::BatchStore(fs::path folder) : folder_(std::move(folder)) {
  try {
    for (const char* kind : {"files", "batches"}) {
      fs::create_directories(folder_ / kind);
      for (const auto& entry : fs::directory_iterator(folder_ / kind)) {
        if (entry.path().extension() == ".part") fs::remove(entry.path());
      }
    }
    load("files", files_);
    load("batches", batches_);
  } catch (const std::exception& error) {
    throw Error("--batch-dir {}: {}", folder_.string(), error.what());
  }
}

BatchStore::~BatchStore() { stop(); }

void BatchStore::load(const char* kind, Entries& entries) {
  for (const auto& item : fs::directory_iterator(folder_ / kind)) {
    if (item.path().extension() != ".json") continue;
    auto json = parse_json(read_file(item.path()));
    if (!json || !json->contains("tenant") || !json->contains("object"))
      throw Error("{} cannot be read", item.path().string());
    entries[item.path().stem().string()] = {json->at("tenant").get<std::string>(), json->at("object")};
  }
}

void BatchStore::save(const char* kind, const std::string& id, const Entry& entry) const {
  write_file(path(kind, id, ".json"), dump_json({{"tenant", entry.tenant}, {"object", entry.json}}));
}

// Later ids are greater, over restarts too.
std::string BatchStore::new_id(const char* prefix) {
  const auto now = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::system_clock::now().time_since_epoch())
          .count());
  last_id_ = std::max(last_id_ + 1, now);
  return fmt::format("{}{:016x}", prefix, last_id_);
}

std::optional<Json> BatchStore::find(const Entries& entries, const std::string& tenant, const std::string& id) const {
  const std::lock_guard lock(mutex_);
  const auto it = entries.find(id);
  if (it == entries.end() || it->second.tenant != tenant) return std::nullopt;
  return it->second.json;
}

std::vector<Json> BatchStore::list(const Entries& entries, const std::string& tenant) const {
  const std::lock_guard lock(mutex_);
  std::vector<Json> found;
  for (auto it = entries.rbegin(); it != entries.rend(); ++it) {
    if (it->second.tenant == tenant) found.push_back(it->second.json);
  }
  return found;
}

ApiResult<Json> BatchStore::add_file(const std::string& tenant, const std::string& name, const std::string& purpose,
                                     std::string_view content) {
  const std::lock_guard lock(mutex_);
  if (files_.size() >= kMaxFiles) {
    return ApiError::invalid(fmt::format("There are {} files; delete some.", files_.size()), "file", "too_many_files");
  }
  const std::string id = new_id("file-");
  Entry entry{tenant,
              {{"id", id},
               {"object", "file"},
               {"bytes", content.size()},
               {"created_at", unix_seconds()},
               {"filename", name},
               {"purpose", purpose},
               {"status", "processed"}}};
  write_file(path("files", id, ".jsonl"), content);
  try {
    save("files", id, entry);
  } catch (...) {
    std::error_code ignored;
    fs::remove(path("files", id, ".jsonl"), ignored);  // nobody knows of it
    throw;
  }
  return (files_[id] = std::move(entry)).json;
}

std::vector<Json> BatchStore::files(const std::string& tenant, const std::string& purpose) const {
  std::vector<Json> found = list(files_, tenant);
  if (!purpose.empty()) std::erase_if(found, [&](const Json& file) { return file["purpose"] != purpose; });
  return found;
}

std::optional<Json> BatchStore::file(const std::string& tenant, const std::string& id) const {
  return find(files_, tenant, id);
}

std::optional<std::string> BatchStore::file_content(const std::string& tenant, const std::string& id) const {
  if (!find(files_, tenant, id)) return std::nullopt;
  return read_file(path("files", id, ".jsonl"));
}

bool BatchStore::delete_file(const std::string& tenant, const std::string& id) {
  if (!find(files_, tenant, id)) return false;
  const std::lock_guard lock(mutex_);
  files_.erase(id);
  fs::remove(path("files", id, ".json"));
  fs::remove(path("files", id, ".jsonl"));
  return true;
}

ApiResult<Json> BatchStore::add_batch(const Caller& caller, const Json& body) {
  FieldReader in(body);
  const std::string file_id = in.text("input_file_id", 128).value_or("");
  const std::string endpoint = in.text("endpoint", 128).value_or("");
  const std::string window = in.text("completion_window", 16).value_or("24h");
  const Json* metadata = in.object("metadata");
  if (metadata && dump_json(*metadata).size() > kMaxMetadataBytes) {
    in.fail("metadata", fmt::format("'metadata' is larger than {} bytes.", kMaxMetadataBytes));
  }
  if (in.ok() && !is_batch_url(endpoint)) in.fail("endpoint", "'endpoint' is none that a batch can use.");
  const std::optional<int64_t> seconds = seconds_of(window);
  if (in.ok() && !seconds) in.fail("completion_window", "'completion_window' must be a time like \"24h\" or \"7d\".");
  const std::optional<std::string> input = in.ok() ? file_content(caller.tenant, file_id) : std::nullopt;
  if (in.ok() && !input) in.fail("input_file_id", "'input_file_id' names no file.");
  if (!in.ok()) return ApiError::invalid(in.error());
  const BatchFileCheck check = check_batch_file(*input, endpoint);
  const bool failed = !check.errors.is_null();
  const std::lock_guard lock(mutex_);
  if (batches_.size() >= kMaxBatches) return ApiError::invalid("There are too many batches.", "", "too_many_batches");
  const std::string id = new_id("batch_");
  const int64_t now = unix_seconds();
  Entry entry{caller.tenant,
              {{"id", id},
               {"object", "batch"},
               {"endpoint", endpoint},
               {"errors", check.errors},
               {"input_file_id", file_id},
               {"completion_window", window},
               {"status", failed ? "failed" : "in_progress"},
               {"output_file_id", nullptr},
               {"error_file_id", nullptr},
               {"created_at", now},
               {"in_progress_at", failed ? Json() : Json(now)},
               {"expires_at", now + *seconds},
               {"finalizing_at", nullptr},
               {"completed_at", nullptr},
               {"failed_at", failed ? Json(now) : Json()},
               {"expired_at", nullptr},
               {"cancelling_at", nullptr},
               {"cancelled_at", nullptr},
               {"request_counts", {{"total", check.lines}, {"completed", 0}, {"failed", 0}}},
               {"metadata", metadata ? *metadata : Json()}}};
  save("batches", id, entry);
  changed_.notify_all();
  return (batches_[id] = std::move(entry)).json;
}

std::vector<Json> BatchStore::batches(const std::string& tenant) const { return list(batches_, tenant); }

std::optional<Json> BatchStore::batch(const std::string& tenant, const std::string& id) const {
  return find(batches_, tenant, id);
}

std::optional<Json> BatchStore::cancel(const std::string& tenant, const std::string& id) {
  const std::lock_guard lock(mutex_);
  const auto it = batches_.find(id);
  if (it == batches_.end() || it->second.tenant != tenant) return std::nullopt;
  Json& batch = it->second.json;
  if (batch["status"] == "in_progress") {
    batch["status"] = "cancelling";
    batch["cancelling_at"] = unix_seconds();
    save("batches", id, it->second);
    if (running_ == id && runner_) runner_->stop();
    changed_.notify_all();
  }
  return batch;
}

void BatchStore::start(ServerContext& context) {
  context_ = &context;
  thread_ = std::thread([this] { work(); });
}

void BatchStore::stop_taking() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  if (runner_) runner_->stop();
  changed_.notify_all();
}

void BatchStore::stop() {
  stop_taking();
  if (thread_.joinable()) thread_.join();
}

std::optional<std::string> BatchStore::next_batch() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    for (const auto& [id, entry] : batches_) {
      if (is_open(entry.json)) return running_ = id;
    }
    changed_.wait(lock);
  }
  return std::nullopt;
}

void BatchStore::work() {
  while (const auto id = next_batch()) {
    try {
      run_batch(*id);
    } catch (const std::exception& error) {
      log::error("batch {}: {}", *id, error.what());
      fail(*id, error.what());
    }
  }
}

// Its results are gone: they are what may have filled the disk.
void BatchStore::fail(const std::string& id, const char* why) {
  const std::lock_guard lock(mutex_);
  std::error_code ignored;
  fs::remove(path("batches", id, ".out"), ignored);
  fs::remove(path("batches", id, ".err"), ignored);
  running_.clear();
  Entry& entry = batches_[id];
  entry.json["status"] = "failed";
  entry.json["failed_at"] = unix_seconds();
  entry.json["errors"] = {
      {"object", "list"},
      {"data", Json::array({{{"code", "server_error"}, {"line", nullptr}, {"message", why}, {"param", nullptr}}})}};
  try {
    save("batches", id, entry);
  } catch (const std::exception& error) {
    log::error("batch {}: {}; it will be done again after a restart", id, error.what());
  }
}

void BatchStore::run_batch(const std::string& id) {
  Entry entry;
  {
    const std::lock_guard lock(mutex_);
    entry = batches_[id];
  }
  const fs::path out_path = path("batches", id, ".out"), error_path = path("batches", id, ".err");
  std::unordered_set<std::string> known, failed;
  read_results(out_path, known);
  read_results(error_path, failed);
  size_t completed_count = known.size(), failed_count = failed.size();
  known.merge(failed);
  std::ofstream out(out_path, std::ios::binary | std::ios::app), errors(error_path, std::ios::binary | std::ios::app);
  const fs::path input_path = path("files", entry.json["input_file_id"].get<std::string>(), ".jsonl");
  std::ifstream input;
  if (fs::is_regular_file(input_path)) input.open(input_path, std::ios::binary);
  if (!out || !errors || !input.is_open()) throw Error("its files cannot be opened");

  const auto in_flight =
      static_cast<size_t>(context_->model.load(std::memory_order_acquire)->engine.config().max_num_seqs);
  BatchRunner runner(*context_, {.tenant = entry.tenant, .admin = false}, in_flight);
  // However this ends: nobody may stop a runner that is gone.
  const std::unique_ptr<BatchStore, void (*)(BatchStore*)> forget(this, [](BatchStore* store) {
    const std::lock_guard lock(store->mutex_);
    store->runner_ = nullptr;
  });
  {
    const std::lock_guard lock(mutex_);
    runner_ = &runner;
    if (stopping_ || batches_[id].json["status"] == "cancelling") runner.stop();
  }
  const auto next = [&]() -> std::optional<std::string> {
    for (std::string line; std::getline(input, line);) {
      if (is_blank_line(line)) continue;
      if (known.empty() || !known.contains(custom_id_of(line))) return line;
    }
    return std::nullopt;
  };
  const auto count = [&] {
    const std::lock_guard lock(mutex_);
    batches_[id].json["request_counts"]["completed"] = completed_count;
    batches_[id].json["request_counts"]["failed"] = failed_count;
  };
  const Json expires_at = entry.json["expires_at"];
  std::optional<Clock::time_point> until;
  if (expires_at.is_number()) until = Clock::now() + std::chrono::seconds(expires_at.get<int64_t>() - unix_seconds());
  std::unordered_set<std::string> answered;  // now; `known` is what next() leaves out
  const auto done = [&](const BatchRunner::Result& result) {
    (result.ok ? out : errors) << result.line << '\n' << std::flush;
    if (!out || !errors) return runner.stop();  // nothing that is still computed could be kept
    ++(result.ok ? completed_count : failed_count);
    answered.insert(result.custom_id);
    count();
  };
  runner.run(next, done, until);
  const auto total = entry.json["request_counts"]["total"].get<size_t>();
  known.merge(answered);
  bool expired = false;
  {
    const std::lock_guard lock(mutex_);
    const bool cancelled = batches_[id].json["status"] == "cancelling";
    expired = until && Clock::now() >= *until && known.size() < total && !cancelled;
  }
  if (expired) {
    failed_count += write_expired(entry, known, errors);
    count();
  }
  if (!out || !errors) throw Error("its results cannot be written");
  out.close();
  errors.close();

  const std::lock_guard lock(mutex_);
  running_.clear();
  Entry& stored = batches_[id];
  const bool cancelled = stored.json["status"] == "cancelling" && !expired;
  if (stopping_ && !cancelled && !expired) return save("batches", id, stored);
  stored.json["finalizing_at"] = unix_seconds();
  if (fs::file_size(out_path) > 0) stored.json["output_file_id"] = add_result_file(stored, out_path, "output");
  if (fs::file_size(error_path) > 0) stored.json["error_file_id"] = add_result_file(stored, error_path, "error");
  const char* status = expired ? "expired" : cancelled ? "cancelled" : "completed";
  stored.json["status"] = status;
  stored.json[fmt::format("{}_at", status)] = unix_seconds();
  save("batches", id, stored);
  fs::remove(out_path);
  fs::remove(error_path);
}

size_t BatchStore::write_expired(const Entry& batch, const std::unordered_set<std::string>& known,
                                 std::ostream& errors) const {
  std::ifstream input(path("files", batch.json["input_file_id"].get<std::string>(), ".jsonl"), std::ios::binary);
  size_t count = 0;
  for (std::string line; std::getline(input, line);) {
    const std::string custom_id = is_blank_line(line) ? std::string() : custom_id_of(line);
    if (custom_id.empty() || known.contains(custom_id)) continue;
    errors << BatchRunner::error_line(custom_id, "batch_expired",
                                      "This request could not be executed before the completion window expired.")
           << '\n';
    ++count;
  }
  errors << std::flush;
  return count;
}

// With the lock held. Results are kept where they are until the batch says that it is done.
std::string BatchStore::add_result_file(const Entry& batch, const fs::path& results, const char* kind) {
  const std::string id = new_id("file-");
  fs::copy_file(results, path("files", id, ".jsonl"));
  Entry entry{batch.tenant,
              {{"id", id},
               {"object", "file"},
               {"bytes", fs::file_size(results)},
               {"created_at", unix_seconds()},
               {"filename", fmt::format("{}_{}.jsonl", batch.json["id"].get<std::string>(), kind)},
               {"purpose", "batch_output"},
               {"status", "processed"}}};
  save("files", id, entry);
  files_[id] = std::move(entry);
  return id;
}

}  // namespace bam
