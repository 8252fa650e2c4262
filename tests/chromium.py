"""The explorer as a process and a browser that looks at it, for tests and benchmarks."""

import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAM = Path(sys.executable).with_name("firststep")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# The numbers shown are final.
SETTLED = "body[data-ready=true][data-settled=true]:not(.busy):not(.draft)"
SLIDE = "(node, value) => { node.value = value; node.dispatchEvent(new Event('input', {bubbles: true})); }"


# The command line without spectra computed ahead, which takes every free second of the processor from other tests.
NOTHING_AHEAD = """
from firststep.cli.app import main
from firststep.explorer.service import Service
if __name__ == "__main__":
    Service.look_ahead = lambda *_: None
    main()
"""


@contextmanager
def explorer(store: Path, ahead: bool = True) -> Iterator[tuple[str, int]]:
    """Its address and process number."""
    program = [PROGRAM] if ahead else [sys.executable, "-c", NOTHING_AHEAD]
    command = [*program, "explore", "--port", "0", "--no-open", "--store", str(store)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://\S+", process.stderr.readline())
        assert found
        # Whatever it says must not fill the pipe.
        reader = threading.Thread(target=process.stderr.read)
        reader.start()
        try:
            yield found[0], process.pid
        finally:
            process.terminate()
            reader.join()


@contextmanager
def chromium() -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as machine:
        found = machine.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield found
        found.close()


def slide(page: Any, identity: str, value: float) -> None:
    """Move a slider as a hand would."""
    page.eval_on_selector(f"#{identity}", SLIDE, value)
