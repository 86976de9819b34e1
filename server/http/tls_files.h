#pragma once

#include <string>

namespace bam {

// Throws UsageError, naming the flag and the file, unless the certificate chain and the key can be read and belong together.
void check_tls_files(const std::string& cert, const std::string& key);

}  // namespace bam
