// Who answers in `bam chat`: a model in this process or a server.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "app/client/target.h"
#include "app/local_generation.h"
#include "server/jinja/chat_template.h"

namespace bam {

class Partner {
 public:
  virtual ~Partner() = default;
  virtual std::string name() const = 0;         // of the model
  virtual std::string description() const = 0;  // a line or two about it
  // False: it is known to have no chat template, so only complete() works.
  virtual bool can_chat() const = 0;
  // Both throw Error with the reason when there is no answer.
  virtual GenerationStats chat(const std::vector<ChatMessage>& messages, const SamplingWishes& wishes,
                               const GenerationHooks& hooks) = 0;
  virtual GenerationStats complete(const std::string& text, const SamplingWishes& wishes,
                                   const GenerationHooks& hooks) = 0;
};

std::unique_ptr<Partner> make_local_partner(const ModelSettings& settings);
std::unique_ptr<Partner> make_remote_partner(const client::TargetOptions& target);

}  // namespace bam
