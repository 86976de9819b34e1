#include "app/command.h"

#include <algorithm>
#include <cstdio>
#include <string>

#include <fmt/format.h>

#include "base/error.h"

namespace bam {
namespace {

int fail(const char* command, const std::exception& error, int code, const std::string& hint = {}) {
  std::string line = error.what();
  std::replace(line.begin(), line.end(), '\n', ' ');
  fmt::print(stderr, "bam {}: {}{}\n", command, line, hint);
  return code;
}

}  // namespace

int run_command(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  const char* command = argv[0];
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& shown) {  // --help
    return app.exit(shown);
  } catch (const CLI::ParseError& error) {
    return fail(command, error, 2, fmt::format(" (see bam {} --help)", command));
  }
  try {
    return body();
  } catch (const UsageError& error) {
    return fail(command, error, 2);
  } catch (const std::exception& error) {
    return fail(command, error, 1);
  }
}

}  // namespace bam
