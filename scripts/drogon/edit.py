#!/usr/bin/env python3
"""edit.py DIR: our changes to the sources of trantor and Drogon in DIR/trantor and DIR/drogon, before they are built.

Each edit replaces a few words by name and says why. One that does not find what it replaces, as often as it expects to,
ends the build: a new version of the library must be looked at, not guessed at. docs/dependencies.md has the short list,
tests/attack the tests.
"""

import pathlib
import re
import sys

GUARD = """
    // An exception that reaches the loop ends what was being done, not the process.
    using ExceptionHook = void (*)(const std::exception_ptr &);
    static std::atomic<ExceptionHook> &exceptionHook()
    {
        static std::atomic<ExceptionHook> hook{nullptr};
        return hook;
    }
    template <typename Work>
    static bool guarded(Work &&work)
    {
        try
        {
            work();
            return true;
        }
        catch (...)
        {
            if (auto hook = exceptionHook().load())
                hook(std::current_exception());
            return false;
        }
    }
"""


class Edit:
    def __init__(self, path, pattern, replacement, count=1):
        self.path, self.pattern, self.replacement, self.count = path, pattern, replacement, count

    def apply(self, root):
        file = root / self.path
        if not file.is_file():
            return f"{self.path} is missing"
        text, found = re.subn(self.pattern, lambda match: match.expand(self.replacement), file.read_text())
        if found != self.count:
            return f"{self.path}: /{self.pattern}/ stands {found} times, not {self.count}"
        file.write_text(text)
        return None


LOOP, TCP = "trantor/trantor/net/EventLoop", "trantor/trantor/net/inner/TcpConnectionImpl.cc"
RESPONSE, IMPL = "drogon/lib/inc/drogon/HttpResponse.h", "drogon/lib/src/HttpResponseImpl"
SERVER = "drogon/lib/src/HttpServer.cc"

EDITS = [
    # The last line of defence. An exception in any callback of a loop went through std::thread and ended the process: one
    # malformed request was enough. A connection whose callback threw is closed; the hook logs and counts.
    Edit(LOOP + ".h", r"#pragma once", r"#pragma once\n#include <atomic>\n#include <exception>"),
    Edit(LOOP + ".h", r"(class TRANTOR_EXPORT EventLoop : NonCopyable\s*\{\s*public:)", r"\1" + GUARD.replace("\\", "\\\\")),
    Edit(LOOP + ".cc", r"currentActiveChannel_->handleEvent\(\);",
         r"guarded([this] { currentActiveChannel_->handleEvent(); });"),
    Edit(LOOP + ".cc", r"(funcs_\.dequeue\(func\)\)\s*\{\s*)func\(\);", r"\1guarded(func);"),
    Edit(TCP, r"\[this\]\(\) \{ ((?:read|write)Callback|handle(?:Close|Error))\(\); \}",
         r"[this]() { if (!EventLoop::guarded([this] { \1(); })) forceClose(); }", 4),
    # A stream on a connection that closes afterwards (`Connection: close`, HTTP/1.0) was answered with an empty body. It is
    # sent like any other; HTTP/1.0, which has no chunks, gets the bare bytes up to the end of the connection.
    Edit(SERVER, r"if \(!respImplPtr->ifCloseConnection\(\)\)", r"if (true)", 2),
    Edit(SERVER, r"asyncStreamKickoffDisabled\(\)\)", r"asyncStreamKickoffDisabled()), respImplPtr->framesStream()", 2),
    Edit(IMPL + ".h", r"(bool asyncStreamKickoffDisabled\(\) const)",
         r'bool framesStream() const { return headers_.find("transfer-encoding") != headers_.end(); }\n    \1'),
    Edit(IMPL + ".cc", r"if \(!ifCloseConnection\(\) &&", r"if (version_ == Version::kHttp11 &&"),
    Edit(RESPONSE, r"(explicit ResponseStream\(trantor::AsyncStreamPtr asyncStream)\)", r"\1, bool framed = true)"),
    Edit(RESPONSE, r": asyncStream_\(std::move\(asyncStream\)\)", r": asyncStream_(std::move(asyncStream)), framed_(framed)"),
    Edit(RESPONSE, r"std::ostringstream oss;", r"if (!framed_) return asyncStream_->send(data);\n        std::ostringstream oss;"),
    Edit(RESPONSE, r"asyncStream_->send\(closeStream\);", r"if (framed_) asyncStream_->send(closeStream);"),
    Edit(RESPONSE, r"trantor::AsyncStreamPtr asyncStream_;", r"trantor::AsyncStreamPtr asyncStream_;\n    bool framed_;"),
]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    root = pathlib.Path(sys.argv[1])
    problems = [problem for edit in EDITS if (problem := edit.apply(root))]
    if problems:
        sys.exit("these sources are not the ones that scripts/drogon/edit.py knows:\n  " + "\n  ".join(problems))
    print(f"{len(EDITS)} edits applied")


if __name__ == "__main__":
    main()
