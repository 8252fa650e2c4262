"""A long session with the explorer, half of it hostile: python benchmarks/soak.py [--requests 10000] [--half-open 200].

Starts a server on this machine alone. Hostile clients send broken heads, foreign hosts, wild states and half-open
connections; an honest one moves a slider all the while. Prints the counts of answers, what was not a stated refusal,
the server's memory and the honest user's times (median, 99 %, longest), beside them the machine's load; exits with 1 if
anything is wrong, if memory grows, or if one of a hundred moves takes 300 ms and more.

Answers are kept up to a stated number. Memory is looked at at the start, when the place for curves is full, and after
each twentieth of the requests: what grows on from there is no answer that is kept. Means of both halves are compared.
"""

import argparse
import collections
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import urlencode

import requests

from firststep.explorer.service import KEPT_CURVES

# Growth between both halves that is let pass, relative and in MiB: what an allocator gives back varies as much.
GROWTH, VARIES = 0.01, 4.0
STATED = {400, 403, 404, 405, 409, 413, 414, 422, 429, 503}


class Soak:
    """What the clients share."""

    def __init__(self, base: str, seed: int) -> None:
        self.base, self.port = base, int(base.rpartition(":")[2].strip("/"))
        self.random = random.Random(seed)
        self.codes: collections.Counter[int] = collections.Counter()
        self.wrong: list[str] = []
        self.times: list[float] = []
        self.ending = threading.Event()

    def note(self, response: requests.Response, what: str) -> None:
        self.codes[response.status_code] += 1
        if response.status_code >= 500 and not (response.status_code == 503 and "detail" in response.text):
            self.wrong.append(f"{what}: {response.status_code} {response.text[:200]}")
        elif response.status_code >= 300 and response.status_code not in STATED:
            self.wrong.append(f"{what}: {response.status_code}")

    def hostile(self, session: requests.Session) -> None:
        """One hostile request."""
        kind = self.random.randrange(7)
        headers: dict[str, str] = {}
        path, query = "/api/choices", {}
        if kind == 0:
            headers["host"] = self.random.choice(["evil.example", "[::1].evil", "127.0.0.1:x", "[", ""])
        elif kind == 1:
            headers["origin"] = self.random.choice(["http://[", "null", "http://evil.example", "//"])
        elif kind == 2:
            headers["sec-fetch-site"] = "cross-site"
        elif kind == 3:
            path = "/api/curves"
            query = {
                "activation": self.random.choice(
                    ["relu(1/x)", "x\n+1", "__import__('os')", "(" * 300, "exp(exp(x))"]
                )
            }
        elif kind == 4:
            path = self.random.choice(["/api/spectrum/features", "/api/curves"])
            query = {"n_samples": self.random.choice(["nan", "1e400", "-5", "x" * 5000]), "ridge": "0"}
        elif kind == 5:
            path = "/page/" + self.random.choice(["../app.py", "%2e%2e%2f", "x" * 2000, "\x00"])
        try:
            if kind == 6:
                body = self.random.choice([b"{", b"[" * 20000, b'{"state": {}}', b"\xff"])
                self.note(session.post(f"{self.base}/api/simulations", data=body, timeout=60), "post")
            else:
                address = f"{self.base}{path}?{urlencode(query)}"
                self.note(session.get(address, headers=headers, timeout=60), f"{path} {query} {headers}")
        except (requests.ConnectionError, UnicodeError, ValueError):
            # The server hung up on it, or the library would not even send it.
            self.codes[0] += 1

    def honest(self) -> None:
        """Move the slider of the ridge, and wait for each answer."""
        with requests.Session() as session:
            ridge = 0.05
            while not self.ending.is_set():
                # Always a new value, so that each move is computed.
                ridge = ridge * 1.003 if ridge < 5 else 0.05 * (1 + 0.001 * self.random.random())
                started = time.monotonic()
                try:
                    found = session.get(
                        f"{self.base}/api/curves?ridge={ridge:.6g}",
                        headers={"x-firststep-client": "honest", "x-firststep-quality": "draft"},
                        timeout=60,
                    )
                except requests.ConnectionError as error:
                    self.wrong.append(f"the honest user was turned away: {error}")
                    continue
                if found.status_code == 200:
                    self.times.append(time.monotonic() - started)
                else:
                    self.wrong.append(f"the honest user got {found.status_code}: {found.text[:100]}")
                time.sleep(0.2)


def filled(base: str) -> None:
    """Ask for as many curves as are kept, and some more."""
    with requests.Session() as session:
        for k in range(KEPT_CURVES + 32):
            # From a place that the honest user never comes to.
            session.get(
                f"{base}/api/curves?ridge={1e-3 * 1.01**k:.6g}",
                headers={"x-firststep-client": "first", "x-firststep-quality": "draft"},
                timeout=60,
            )


def half_open(port: int, count: int) -> list[socket.socket]:
    """Connections that send a part of a head."""
    found = []
    for _ in range(count):
        try:
            one = socket.create_connection(("127.0.0.1", port), timeout=5)
            one.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-A")
        except OSError:
            continue
        found.append(one)
    return found


def memory(pid: int) -> float:
    """MiB that a process and its children hold."""
    pages = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == pid:
                    pages += int((entry / "statm").read_text().split()[1])
            except (OSError, IndexError):
                continue
    return pages * 4096 / 2**20


def growth(held: list[float]) -> float:
    """Mean of the second half less that of the first, without its first quarter.

    Examples
    --------
    >>> growth([9.0, 1.0, 1.0, 1.0, 2.0, 2.0, 2.0, 2.0])
    1.0
    """
    half = len(held) // 2
    return statistics.mean(held[half:]) - statistics.mean(held[half // 4 : half])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--half-open", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "firststep", "explore", "--no-open", "--port", "0"]
        server = subprocess.Popen(
            [*command, "--store", str(Path(folder) / "s.db")],
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert server.stderr is not None
        base = re.search(r"http://[\d.:]+", server.stderr.readline())[0]
        try:
            soak = Soak(base, arguments.seed)
            # Until its processes have started.
            for k in range(8):
                requests.get(f"{base}/api/curves?ridge={1 + k}", timeout=120)
            held = [memory(server.pid)]
            filled(base)
            held.append(memory(server.pid))
            user = threading.Thread(target=soak.honest)
            user.start()
            sockets = half_open(soak.port, arguments.half_open)
            with requests.Session() as session:
                for number in range(arguments.requests):
                    if number % 2:
                        soak.hostile(session)
                    else:
                        soak.note(session.get(f"{base}/api/choices", timeout=60), "choices")
                    if number % (arguments.requests // 20 or 1) == 0:
                        held.append(memory(server.pid))
                    if number % 1000 == 999:
                        for one in sockets:
                            one.close()
                        sockets = half_open(soak.port, arguments.half_open)
                    # What one client may ask in a second is limited; that is not what is tried here.
                    time.sleep(0.012)
            soak.ending.set()
            user.join()
        finally:
            server.kill()
            server.communicate()
    ordered = sorted(soak.times)
    facts = {
        "answers": dict(sorted(soak.codes.items())),
        "memory_mib": {
            "start": round(held[0]),
            "full": round(held[1]),
            "after": [round(one) for one in held[2:]],
        },
        "growth_mib": round(growth(held[2:]), 1),
        "slider_ms": [
            round(1e3 * time_of)
            for time_of in (statistics.median(ordered), ordered[int(0.99 * len(ordered))], ordered[-1])
        ],
        "load": round(os.getloadavg()[1], 1),
        "moves": len(ordered),
        "wrong": len(soak.wrong),
    }
    print(json.dumps(facts, indent=1))
    for line in soak.wrong[:20]:
        print(f"  {line}")
    grows = growth(held[2:]) > GROWTH * held[1] + VARIES
    sys.exit(bool(soak.wrong) or grows or ordered[int(0.99 * len(ordered))] > 0.3)


if __name__ == "__main__":
    main()
