// A request inside the engine. Touched by the engine thread only.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/ngram_index.h"
#include "engine/request.h"
#include "engine/sequence.h"

namespace bam {

struct ActiveRequest {
  Request request;
  std::shared_ptr<EventSink> sink;
  uint64_t seed = 0;

  std::optional<NgramIndex> prompt_ngrams;  // for the drafters of all choices

  // Choice 0 reads the prompt; the others are forked from it when it has. Finished ones stay until the request is done.
  std::vector<std::unique_ptr<Sequence>> choices;
  std::vector<bool> choice_finished;  // [n]
  int32_t num_unfinished = 0;
  bool prompt_done = false;
  bool paused = false;                          // gets no rows until its reader has caught up
  std::optional<Clock::time_point> held_until;  // gets no rows while a store looks for its prompt
  int num_losses = 0;                           // of ranks, that it lived through
  bool dead_end = false;                        // see FinishEvent

  Clock::time_point submitted_at{};
  std::optional<Clock::time_point> deadline;
  std::optional<Clock::time_point> queue_deadline;  // it must have been scheduled by then
  std::optional<Clock::time_point> started_at;      // first scheduled
  std::optional<Clock::time_point> first_token_at;
  int64_t cached_tokens = 0;   // of the prompt, when it was first scheduled
  int64_t progress_sent = -1;  // prompt positions of the last ProgressEvent
  std::vector<double> pooled;  // [hidden] sum of the rows so far, with pooling
  int64_t pooled_rows = 0;
  std::vector<Event> events;  // of the current step
  bool touched = false;       // has events to deliver or is done

  bool done() const { return num_unfinished == 0; }
  bool queued() const { return !started_at.has_value(); }
  std::optional<Clock::time_point> gives_up_at() const { return queued() ? queue_deadline : std::nullopt; }
};

}  // namespace bam
