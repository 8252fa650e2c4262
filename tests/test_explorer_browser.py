"""The explorer in a real browser: controls, numbers, links, simulation, layout, and no word to anyone else."""

import json
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from chromium import CHROMIUM, PROGRAM, SETTLED, chromium, explorer, slide

from firststep import Problem, Sizes
from firststep.theory.spectrum import predict_spectrum

pytest.importorskip("fastapi", reason="the explorer needs firststep[web]")
pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: apt-get install chromium", allow_module_level=True)

PATIENCE = 60_000
# Small and quick, so that the whole of this file takes less than a minute.
START = "n_samples=300&teacher=h1&rows=sphere"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with explorer(tmp_path_factory.mktemp("browser") / "store.db") as (found, _):
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as found:
        yield found


class Watched:
    """A page with everything that it complained about or asked for."""

    def __init__(self, browser: Any, address: str, width: int = 1280, height: int = 900) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": height}, accept_downloads=True)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.address = address
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, query: str = START) -> "Watched":
        self.page.goto(f"{self.address}?{query}")
        return self.settle()

    def settle(self) -> "Watched":
        """Wait until the numbers shown are final."""
        self.page.wait_for_selector(SETTLED)
        return self

    def reading(self, name: str) -> float:
        return float(self.page.inner_text(f"#reading-{name}").replace("−", "-").removesuffix(" %"))

    def slide(self, identity: str, value: float) -> None:
        """Move a slider as a hand would."""
        slide(self.page, identity, value)

    def write(self, identity: str, value: str) -> None:
        self.page.fill(f"#{identity}", value)
        self.page.press(f"#{identity}", "Tab")

    def close(self) -> None:
        """End, with the checks that hold for every page."""
        self.context.close()
        assert self.complaints == []
        outside = [url for url in self.asked if not url.startswith((self.address, "blob:", "data:"))]
        assert outside == []


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Watched]:
    found = Watched(browser, address)
    yield found.open()
    found.close()


def predicted(*options: str) -> dict[str, float]:
    done = subprocess.run(
        [PROGRAM, "predict", *options, "--json"], capture_output=True, text=True, check=True
    )
    (row,) = json.loads(done.stdout)["rows"]
    return dict(row)


def test_numbers_are_those_of_the_command_line(page: Watched) -> None:
    page.page.click("#copy-open")
    page.page.wait_for_selector("#copy-dialog[open]")
    command = page.page.inner_text("#copy-text")
    assert command.startswith("firststep predict")
    import shlex

    row = predicted(*shlex.split(command)[2:])
    assert page.reading("test") == pytest.approx(row["test_error"], rel=1e-4)
    assert page.reading("train") == pytest.approx(row["train_error"], rel=1e-4)
    assert page.reading("gain") == pytest.approx(row["test_gain"], abs=2e-4)
    assert page.reading("alignment") == pytest.approx(row["weights_alignment"], abs=2e-3)
    page.page.click("#tab-python")
    assert "predict(problem" in page.page.inner_text("#copy-text")
    page.page.keyboard.press("ArrowRight")
    assert "[sweep]" in page.page.inner_text("#copy-text")
    page.page.keyboard.press("Escape")
    # The same for another step, off the slider's positions.
    page.write("eta-number", "3.5")
    page.settle()
    sizes = ("--n-samples", "300", "--dim", "150", "--width", "225", "--rows", "sphere")
    row = predicted("--teacher", "h1", "--noise-std", "0.5", "--step-size", "3.5", *sizes)
    assert page.reading("test") == pytest.approx(row["test_error"], rel=1e-4)


def test_spectra_are_refined_at_rest_and_do_not_follow_the_ridge(page: Watched) -> None:
    page.slide("step_exponent", 47)
    page.page.wait_for_selector("#chart-spectrum[data-exact=true][data-exponent='0.37']")
    page.page.wait_for_selector("#chart-weights[data-exact=true][data-exponent='0.37']")
    problem = Problem("relu", "h1", 0.5, rows="sphere")
    sizes = Sizes(300, 150, 225)
    expected = predict_spectrum(problem, sizes, sizes.step_size(0.37), points=120)
    shown = [float(text) for text in page.page.locator("#chart-spectrum .spike-name").all_text_contents()]
    assert shown == pytest.approx([outlier.eigenvalue for outlier in expected.outliers], rel=2e-4)
    page.asked.clear()
    page.slide("ridge-slider", 33)
    page.page.wait_for_timeout(800)
    page.settle()
    assert any("api/curves" in url for url in page.asked)
    assert not any("api/spectrum" in url for url in page.asked)
    assert page.page.get_attribute("#chart-spectrum", "data-exact") == "true"


CONTROLS = [
    ("slide", "step_exponent", 45, "step_exponent=0.35"),
    ("write", "alpha-number", "0.123", "step_exponent=0.123"),
    ("slide", "ridge-slider", 40, "ridge="),
    ("write", "ridge", "0.37", "ridge=0.37"),
    ("slide", "noise_std-slider", 4, "noise_std=0.2"),
    ("slide", "n_samples-slider", 2, "n_samples=200"),
    ("slide", "dim_per_sample-slider", 4, "dim_per_sample=0.3"),
    ("slide", "width_per_sample-slider", 15, "width_per_sample=1.75"),
    ("slide", "step_samples_per_sample-slider", 16, "step_samples_per_sample=2"),
    ("select", "activation-name", "tanh", "activation=tanh"),
    ("select", "teacher-name", "erf", "teacher=erf"),
    ("slide", "weight-2", 0.5, "teacher=0.95*h1"),
    ("select", "rows", "gaussian", "!rows"),
    ("select", "readout", "rademacher", "readout=rademacher"),
    ("select", "initial_output", "order_one", "initial_output=order_one"),
]


def test_every_control_changes_what_it_should(page: Watched) -> None:
    for how, identity, value, wanted in CONTROLS:
        before = {name: page.page.inner_text(f"#reading-{name}") for name in ("test", "train")}
        if how == "select":
            page.page.select_option(f"#{identity}", str(value))
        else:
            getattr(page, how)(identity, value)
        page.page.wait_for_timeout(150)
        page.settle()
        after = {name: page.page.inner_text(f"#reading-{name}") for name in ("test", "train")}
        assert before["test"] != after["test"], f"{identity} changed nothing"
        if wanted.startswith("!"):
            assert f"{wanted[1:]}=" not in page.page.url
        elif identity != "weight-2":
            assert wanted in page.page.url.replace("%2F", "/"), f"{identity}: {page.page.url}"
        else:
            assert "h2" in page.page.url
    # A change of the ridge leaves the spectrum alone; a change of the step moves it.
    page.slide("step_exponent", 55)
    page.page.wait_for_selector("#chart-spectrum[data-exponent='0.45'] .spike-dot")
    assert "spike 1" in (page.page.get_attribute("#chart-spectrum svg", "aria-label") or "")


def test_a_bad_expression_is_explained_and_mended(browser: Any, address: str) -> None:
    page = Watched(browser, address).open()
    page.page.select_option("#activation-name", "")
    page.write("activation", "import os")
    page.page.wait_for_selector("#message:not([hidden])")
    assert "expression" in page.page.inner_text("#message")
    page.write("activation", "tanh(2*x)")
    page.page.wait_for_timeout(100)
    page.settle()
    assert page.page.is_hidden("#message")
    # The browser itself reports the refused request.
    assert all("422" in complaint for complaint in page.complaints)
    page.complaints.clear()
    page.close()


def test_a_link_restores_the_view(browser: Any, address: str, page: Watched) -> None:
    page.slide("step_exponent", 50)
    page.slide("noise_std-slider", 8)
    page.page.wait_for_timeout(200)
    page.settle()
    page.page.wait_for_timeout(200)
    other = Watched(browser, address)
    other.page.goto(page.page.url)
    other.settle()
    for name in ("test", "train", "gain", "captured", "alignment"):
        assert other.page.inner_text(f"#reading-{name}") == page.page.inner_text(f"#reading-{name}")
    assert other.page.input_value("#alpha-number") == "0.40"
    assert other.page.input_value("#noise_std") == "0.4"
    other.close()


def test_presets_tour_theme_and_exports(page: Watched) -> None:
    names = page.page.locator("#preset option").all_inner_texts()
    assert any("Ba et al." in name for name in names)
    assert any("Cui et al." in name for name in names)
    page.page.select_option("#preset", label=next(name for name in names if "setting 2" in name))
    page.page.wait_for_timeout(150)
    page.settle()
    assert page.page.input_value("#n_samples") == "2000"
    page.page.wait_for_selector("#chart-spectrum path.bulk")
    page.page.wait_for_selector("#chart-weights path.bulk")
    for view in ("errors", "spectrum", "learned", "weights"):
        for kind, first in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"")):
            with page.page.expect_download() as waiting:
                page.page.click(f".export[data-view={view}] button:text-is('{kind}')")
            content = Path(waiting.value.path()).read_bytes()
            assert content.startswith(first)
            assert len(content) > 300
            if kind == "CSV" and view == "errors":
                assert len(content.splitlines()) > 61
    before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.click("#theme")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.page.click("#tour-start")
    titles = []
    for _ in range(5):
        titles.append(page.page.inner_text("#tour-title"))
        page.page.wait_for_selector(".lit")
        page.page.click("#tour-next")
    assert len(set(titles)) == 5
    assert page.page.is_hidden("#tour")
    page.settle()


def test_the_keyboard_suffices(page: Watched) -> None:
    page.page.keyboard.press("Tab")
    assert page.page.evaluate("document.activeElement.className") == "skip"
    page.page.focus("#step_exponent")
    alpha = page.page.input_value("#alpha-number")
    for _ in range(3):
        page.page.keyboard.press("ArrowRight")
    page.settle()
    assert float(page.page.input_value("#alpha-number")) == pytest.approx(float(alpha) + 0.03)
    assert "η" in (page.page.get_attribute("#step_exponent", "aria-valuetext") or "")
    page.page.focus(".explain .sym")
    assert page.page.is_visible("#tip")
    assert len(page.page.inner_text("#tip")) > 5
    page.page.keyboard.press("Escape")
    assert page.page.is_hidden("#tip")
    unnamed = page.page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, svg[role=img]")].filter(node =>
            !node.getAttribute("aria-label") && !node.textContent.trim() &&
            !(node.id && document.querySelector(`label[for="${node.id}"]`)) && !node.closest("label"))
            .map(node => node.outerHTML)"""
    )
    assert unnamed == []


def test_simulate_reuse_and_cancel(page: Watched) -> None:
    page.page.select_option("#replicas", "4")
    page.page.click("#simulate")
    page.page.wait_for_selector("#chart-test .simulation circle")
    page.page.wait_for_selector("#simulate:not([disabled])")
    assert "4 replicas done" in page.page.inner_text("#simulation-text")
    assert page.page.locator("#chart-test .simulation circle").count() == 11
    assert page.page.locator("#chart-spectrum .histogram rect").count() > 5
    for chart in ("test", "train"):
        # Every point, with its bar, lies inside the axes.
        top = page.page.locator(f"#chart-{chart} .grid .tick").last.bounding_box()["y"]
        assert all(
            node.bounding_box()["y"] > top - 12
            for node in page.page.locator(f"#chart-{chart} .simulation line").all()
        )
    # They are found again.
    page.page.reload()
    page.settle()
    page.page.wait_for_selector("#chart-test .simulation circle")
    assert "4 replicas" in page.page.inner_text("#simulation-text")
    # A longer one is ended.
    page.slide("n_samples-slider", 6)
    page.page.wait_for_timeout(150)
    page.settle()
    page.page.select_option("#replicas", "16")
    page.page.click("#simulate")
    page.page.wait_for_selector("#cancel:not([hidden])")
    page.page.click("#cancel")
    page.page.wait_for_selector("#simulate:not([disabled])")
    assert "Cancelled" in page.page.inner_text("#simulation-text")


@pytest.mark.parametrize(("width", "height"), [(375, 812), (1920, 1080)])
def test_the_layout_holds(browser: Any, address: str, width: int, height: int) -> None:
    page = Watched(browser, address, width, height).open()
    page.page.wait_for_selector("#chart-spectrum path.bulk")
    page.page.wait_for_selector("#chart-weights path.bulk")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    boxes = [node.bounding_box() for node in page.page.locator(".view").all()]
    assert len(boxes) == 4
    for i, one in enumerate(boxes):
        assert one["x"] >= 0
        assert one["x"] + one["width"] <= width
        for other in boxes[i + 1 :]:
            apart = (
                one["x"] + one["width"] <= other["x"]
                or other["x"] + other["width"] <= one["x"]
                or one["y"] + one["height"] <= other["y"]
                or other["y"] + other["height"] <= one["y"]
            )
            assert apart
    outside = page.page.evaluate(
        """() => [...document.querySelectorAll(".chart")].flatMap(svg => {
            const box = svg.getBoundingClientRect();
            return [...svg.querySelectorAll("text")].filter(text => {
                const inner = text.getBoundingClientRect();
                return inner.left < box.left - 2 || inner.right > box.right + 2 || inner.bottom > box.bottom + 2;
            }).map(text => text.textContent);
        })"""
    )
    assert outside == []
    assert (page.page.get_attribute("#drawer", "open") is None) == (width == 375)
    page.close()


@pytest.mark.slow
def test_the_static_version_works_without_a_server_of_ours(browser: Any, tmp_path: Path) -> None:
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

    class Silent(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    subprocess.run([PROGRAM, "explore", "--export", str(tmp_path), "--size", "small", "-q"], check=True)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Silent, directory=str(tmp_path))) as files:
        threading.Thread(target=files.serve_forever, daemon=True).start()
        page = Watched(browser, f"http://127.0.0.1:{files.server_address[1]}/").open("")
        page.page.wait_for_selector("#chart-spectrum path.bulk")
        before = page.page.inner_text("#reading-test")
        page.slide("step_exponent", 55)
        page.settle()
        assert page.page.inner_text("#reading-test") != before
        page.page.select_option("#preset", "1")
        page.page.wait_for_timeout(100)
        page.settle()
        assert page.page.input_value("#teacher") == "h1 + h2/sqrt(2)"
        page.close()
        files.shutdown()
