#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "app/client/completion_call.h"
#include "app/client/http_loop.h"
#include "app/client/passkey_results.h"
#include "app/client/terminal.h"

namespace bam::client {

struct PasskeyCell {
  int64_t length = 0;
  double depth = 0;
  int repeat = 0;
};

// Live table with one strip of depths per length on a terminal; one line per finished length elsewhere.
class PasskeyProgress {
 public:
  PasskeyProgress(const std::vector<PasskeyCell>& cells, int concurrency);
  // Results of an earlier run.
  void add_known(const PasskeyRecord& record);
  void on_start(const PasskeyCell& cell);
  void on_record(const PasskeyRecord& record);
  // How much of a running prompt the server has read; the longest wait is the one that is shown.
  void on_reading(const PasskeyCell& cell, const PromptProgress& progress);
  // Call now and then; redraws at most ten times a second.
  void tick();
  // Leaves the final state on the screen.
  void finish();
  // Seconds until all cells are done, from the times seen so far; NaN: nothing to go by yet.
  double eta_s() const;

 private:
  struct Row {
    int total = 0, done = 0;
    double score = 0;
    int errors = 0;
    std::map<double, std::pair<double, int>> depths;  // score sum and count
    std::map<double, int> running, planned;
    std::vector<double> ttft_ms;
    double busy_ms = 0;  // of requests answered in this run
    int timed = 0;
    double cached = 0;
  };
  void count(const PasskeyRecord& record);
  std::string strip(const Row& row) const;
  std::string summary_line() const;
  std::string row_line(int64_t length, const Row& row) const;

  struct Reading {
    PromptProgress progress;
    TimePoint at;
  };
  std::string reading_line() const;

  LiveArea area_;
  std::map<std::tuple<int64_t, double, int>, Reading> reading_;  // by cell
  std::map<int64_t, Row> rows_;
  int concurrency_;
  int total_ = 0, done_ = 0, resumed_ = 0;
  TimePoint start_ = Clock::now();
  TimePoint last_draw_{};
};

}  // namespace bam::client
