"""Requests whose framing two programs could read differently, and legal ones that look unusual. RFC 9112 decides."""

BODY = b'{"prompt":"x","max_tokens":1}'
LENGTH = b"%d" % len(BODY)
PREFIX = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
CHUNKED = PREFIX + b"Transfer-Encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%s\r\n" % (len(BODY), BODY)


def headers(*lines, body=BODY):
    return PREFIX + b"".join(line + b"\r\n" for line in lines) + b"\r\n" + body


# name -> bytes. Each must be answered with one error and the connection closed.
REFUSED = {
    "transfer-encoding and content-length": headers(b"Transfer-Encoding: chunked", b"Content-Length: 4", body=CHUNK + b"0\r\n\r\n"),
    "content-length and transfer-encoding": headers(b"Content-Length: 4", b"Transfer-Encoding: chunked", body=CHUNK + b"0\r\n\r\n"),
    "two content-lengths": headers(b"Content-Length: " + LENGTH, b"Content-Length: 5"),
    "a list of content-lengths": headers(b"Content-Length: " + LENGTH + b", 5"),
    "space before the colon": headers(b"Content-Length : " + LENGTH),
    "tab before the colon": headers(b"Content-Length\t: " + LENGTH),
    "hexadecimal content-length": headers(b"Content-Length: 0x%x" % len(BODY)),
    "signed content-length": headers(b"Content-Length: +" + LENGTH),
    "negative content-length": headers(b"Content-Length: -" + LENGTH),
    "content-length with letters": headers(b"Content-Length: " + LENGTH + b"abc"),
    "empty content-length": headers(b"Content-Length:"),
    "content-length of 2^64": headers(b"Content-Length: 18446744073709551616"),
    "content-length that wraps": headers(b"Content-Length: 18446744073709551645"),
    "folded header line": headers(b"X-Folded: a", b" b", b"Content-Length: " + LENGTH),
    "folded first line": b"GET /livez HTTP/1.1\r\n Transfer-Encoding: chunked\r\nHost: x\r\n\r\n0\r\n\r\n",
    "folded transfer-encoding": headers(b"Transfer-Encoding:", b" chunked", body=CHUNK + b"0\r\n\r\n"),
    "header without a colon": headers(b"Nonsense", b"Content-Length: " + LENGTH),
    "header without a name": headers(b": x", b"Content-Length: " + LENGTH),
    "header name with a space": headers(b"X Y: z", b"Content-Length: " + LENGTH),
    "header name with a control character": headers(b"X\x01Y: z", b"Content-Length: " + LENGTH),
    "nul in a header value": headers(b"X-Y: a\x00b", b"Content-Length: " + LENGTH),
    "bare carriage return in a header": headers(b"X-Y: a\rTransfer-Encoding: chunked", b"Content-Length: " + LENGTH),
    "bare line feeds in the head": b"POST /v1/completions HTTP/1.1\nHost: x\nContent-Length: " + LENGTH + b"\n\n" + BODY,
    "one bare line feed in the head": b"POST /v1/completions HTTP/1.1\r\nHost: x\nContent-Length: " + LENGTH + b"\r\n\r\n" + BODY,
    "two hosts": headers(b"Host: y", b"Content-Length: " + LENGTH),
    "no host": b"GET /livez HTTP/1.1\r\n\r\n",
    "two transfer-encodings": headers(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked", body=CHUNK + b"0\r\n\r\n"),
    "transfer-encoding identity": headers(b"Transfer-Encoding: identity", body=CHUNK + b"0\r\n\r\n"),
    "transfer-encoding xchunked": headers(b"Transfer-Encoding: xchunked", body=CHUNK + b"0\r\n\r\n"),
    "chunked is not the last coding": headers(b"Transfer-Encoding: chunked, gzip", body=CHUNK + b"0\r\n\r\n"),
    "quoted chunked": headers(b'Transfer-Encoding: "chunked"', body=CHUNK + b"0\r\n\r\n"),
    "vertical tab before chunked": headers(b"Transfer-Encoding: \x0bchunked", body=CHUNK + b"0\r\n\r\n"),
    "chunked in HTTP/1.0": b"POST /v1/completions HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n",
    "empty chunk size": CHUNKED + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk size without digits": CHUNKED + b";x=1\r\n" + BODY + b"\r\n0\r\n\r\n",
    "chunk size of letters": CHUNKED + b"zz\r\n" + BODY + b"\r\n0\r\n\r\n",
    "negative chunk size": CHUNKED + b"-2\r\n" + BODY + b"\r\n0\r\n\r\n",
    "signed chunk size": CHUNKED + b"+%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk size with 0x": CHUNKED + b"0x%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk size with a space before it": CHUNKED + b" %x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk size with garbage after it": CHUNKED + b"%x zz\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk size of 2^64": CHUNKED + b"10000000000000000\r\n" + BODY,
    "chunk size of 2^63": CHUNKED + b"8000000000000000\r\n" + BODY,
    "chunk size with many zeros": CHUNKED + b"0" * 5000 + b"%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "chunk that ends with a bare line feed": CHUNKED + b"%x\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "data without its line end": CHUNKED + b"%x\r\n" % len(BODY) + BODY + b"XX0\r\n\r\n",
    "data longer than its chunk": CHUNKED + b"5\r\n" + BODY + b"\r\n0\r\n\r\n",
    "nul in a chunk extension": CHUNKED + b"%x;a=\x00\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    "endless chunk extension": CHUNKED + b"%x;" % len(BODY) + b"a" * 100_000 + b"\r\n" + BODY + b"\r\n0\r\n\r\n",
    "no version": b"GET /livez\r\nHost: x\r\n\r\n",
    "unknown version": b"GET /livez HTTP/3.0\r\nHost: x\r\n\r\n",
    "version with letters": b"GET /livez HTTP/1.x\r\nHost: x\r\n\r\n",
    "space inside the target": b"GET /livez /x HTTP/1.1\r\nHost: x\r\n\r\n",
    "control character in the target": b"GET /live\x01z HTTP/1.1\r\nHost: x\r\n\r\n",
    "method with a control character": b"GE\x01T /livez HTTP/1.1\r\nHost: x\r\n\r\n",
}

# Legal, and therefore served.
SERVED = {
    "plain": headers(b"Content-Length: " + LENGTH),
    "chunked": CHUNKED + CHUNK + b"0\r\n\r\n",
    "Chunked with a capital": PREFIX + b"Transfer-Encoding: Chunked\r\n\r\n" + CHUNK + b"0\r\n\r\n",
    "CHUNKED in capitals": PREFIX + b"transfer-encoding: CHUNKED\r\n\r\n" + CHUNK + b"0\r\n\r\n",
    "chunk size in capitals": CHUNKED + b"%X\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "leading zeros of a chunk size": CHUNKED + b"00%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
    "chunk extension": CHUNKED + b"%x;name=value\r\n%s\r\n0;last\r\n\r\n" % (len(BODY), BODY),
    "one byte per chunk": CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n",
    "trailers": CHUNKED + CHUNK + b"0\r\nX-Checksum: 1\r\nX-More: 2\r\n\r\n",
    "tabs and spaces around a value": headers(b"Content-Length: \t " + LENGTH + b" \t "),
    "no space after the colon": headers(b"Content-Length:" + LENGTH),
    "an empty header value": headers(b"X-Empty:", b"Content-Length: " + LENGTH),
    "an empty line before the request": b"\r\n" + headers(b"Content-Length: " + LENGTH),
    "high bytes in a value": headers(b"X-Name: \xc3\xa9", b"Content-Length: " + LENGTH),
}
