#pragma once

#include <string>
#include <vector>

#include "app/client/html_page.h"
#include "app/client/passkey_results.h"

namespace bam::client {

// Heat maps, accuracy and speed by length, tables: one run, or several side by side.
Report make_passkey_report(const std::vector<PasskeyRun>& runs, const std::string& title);

// "bam-demo" -> "bam-demo", "A/B c" -> "a-b-c": safe in file names and anchors.
std::string slug(const std::string& text);

}  // namespace bam::client
