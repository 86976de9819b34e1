#include "server/grammar/formats.h"

#include <utility>

namespace bam::constraints {
namespace {

// Years of four digits; the 29th of February only in leap years.
#define BAM_DATE                                                    \
  "(?:\\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"        \
  "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))" \
  "|(?:\\d\\d(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)"
// No leap seconds: few parsers take them.
#define BAM_TIME                                         \
  "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?" \
  "(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define BAM_LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#define BAM_OCTET "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"
#define BAM_H16 "[0-9a-fA-F]{1,4}"

constexpr std::pair<std::string_view, const char*> kFormats[] = {
    {"date", BAM_DATE},
    {"time", BAM_TIME},
    {"date-time", BAM_DATE "T" BAM_TIME},
    {"duration",
     "P(?:\\d{1,9}W|(?:\\d{1,9}Y(?:\\d{1,9}M(?:\\d{1,9}D)?)?|\\d{1,9}M(?:\\d{1,9}D)?|\\d{1,9}D)"
     "(?:T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S))?"
     "|T(?:\\d{1,9}H(?:\\d{1,9}M(?:\\d{1,9}S)?)?|\\d{1,9}M(?:\\d{1,9}S)?|\\d{1,9}S))"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
    {"ipv4", BAM_OCTET "(?:\\." BAM_OCTET "){3}"},
    {"ipv6", "(?:" BAM_H16 ":){7}" BAM_H16 "|(?:" BAM_H16 ":){1,7}:|(?:" BAM_H16 ":){1,6}:" BAM_H16 "|(?:" BAM_H16
             ":){1,5}(?::" BAM_H16 "){2}|(?:" BAM_H16 ":){1,4}(?::" BAM_H16 "){3}|(?:" BAM_H16 ":){1,3}(?::" BAM_H16
             "){4}|(?:" BAM_H16 ":){1,2}(?::" BAM_H16 "){5}|" BAM_H16 ":(?::" BAM_H16 "){6}|:(?::" BAM_H16 "){1,7}|::"},
    {"hostname", BAM_LABEL "(?:\\." BAM_LABEL "){0,3}"},
    {"email",
     "[A-Za-z0-9_%+-]{1,32}(?:\\.[A-Za-z0-9_%+-]{1,31})?@" BAM_LABEL "(?:\\." BAM_LABEL "){0,2}\\.[A-Za-z]{2,24}"},
    {"uri", "[A-Za-z][A-Za-z0-9+.-]*://(?:[A-Za-z0-9._~!$&'()*+,;=:@/?-]|%[0-9A-Fa-f]{2})+"},
};

#undef BAM_DATE
#undef BAM_TIME
#undef BAM_LABEL
#undef BAM_OCTET
#undef BAM_H16

}  // namespace

const char* format_pattern(std::string_view format) {
  for (const auto& [name, pattern] : kFormats) {
    if (name == format) return pattern;
  }
  return nullptr;
}

}  // namespace bam::constraints
