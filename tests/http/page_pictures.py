"""The pictures of docs/page.md: page_pictures.py --bam build/bam. On a quiet machine, since they show speeds; needs what test_web.py needs."""

import argparse
import os
import pathlib
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import bamtest  # noqa: E402
import page_harness  # noqa: E402
from webdriver import Browser  # noqa: E402

IMAGES = bamtest.ROOT / "docs" / "images"


class Photographer(page_harness.PageTest):
    """The test case's ways to use the page, without a test."""

    def __init__(self, server, page):
        super().__init__("playground")
        self.server, self.page = server, page

    def picture(self, name, width=1280, height=900, scheme="light", full_page=True):
        self.page.resize(width, height, mobile=width < 500)
        # Without transitions: a bar is as long as what it shows.
        self.page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme},
                                                                   {"name": "prefers-reduced-motion", "value": "reduce"}])
        # Charts are drawn again for the new width, in the next frames.
        self.page.command("POST", "/execute/async", {"args": [], "script":
                          "const done = arguments[0]; let n = 4; const next = () => (n-- ? requestAnimationFrame(next) : done()); next();"})
        self.page.screenshot(IMAGES / f"{name}.png", full_page=full_page)

    def passkey(self, length):
        self.page.choose("#passkey-length", str(length))
        self.page.click("#passkey-run")
        self.page.wait("the answer", lambda: self.page.count("#passkey-who") == 1, 120)

    def playground(self):
        self.page.resize(1280, 900)
        self.open()
        self.sampling(max_tokens="100", seed="3")
        self.generate("And it came to pass")
        self.passkey(65536)
        self.page.script("document.querySelector('.pane .token:nth-child(40)').focus()")
        self.picture("web-playground")
        self.page.script("document.activeElement.blur()")
        self.picture("web-phone-playground", 390, 844, full_page=False)

    def attention(self):
        self.page.resize(1280, 900)
        self.open()
        self.passkey(65536)
        self.page.click("#passkey-who")
        self.page.wait("the ranking", lambda: self.page.count(".ranking tbody tr") > 4, 60)
        self.wait_text("#view-attention .stats", "looked most at", 60)
        self.picture("web-attention")

    def prior(self):
        self.page.resize(1280, 900)
        self.open("prior/3/0")
        self.wait_text(".facts", "Tiles visited")
        self.picture("web-prior-dark", scheme="dark")

    def engine(self):
        self.page.resize(1280, 900)
        self.open("engine")
        self.wait_text(".tiles", "Prefix cache")
        requests = [page_harness.LongRequest(self.server) for _ in range(3)]
        for request in requests:
            request.started.wait(30)
        self.page.wait("cards", lambda: self.page.count(".request") == 3)
        time.sleep(8)  # the charts fill
        self.picture("web-engine")
        for request in requests:
            self.server.request(f"/v1/requests/{request.id}/cancel", {})
            request.join(30)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bam", default=str(bamtest.ROOT / "build" / "bam"))
    parser.add_argument("views", nargs="*", default=["playground", "attention", "prior", "engine"])
    options = parser.parse_args()
    page_harness.OPTIONS.bam = os.path.abspath(options.bam)
    with page_harness.Server("--kv-memory", "1GiB") as server, Browser() as page:
        for view in options.views:
            getattr(Photographer(server, page), view)()


if __name__ == "__main__":
    main()
