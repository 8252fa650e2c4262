"""The explorer in a real browser: controls, numbers, links, simulation, layout, and no word to anyone else."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from chromium import CHROMIUM, PROGRAM, SETTLED, chromium, explorer, slide

from firststep import Problem, Sizes
from firststep.theory.spectra.spectrum import predict_spectrum

pytest.importorskip("fastapi", reason="the explorer needs firststep[web]")
pytest.importorskip("playwright.sync_api", reason="the browser tests need playwright")
if CHROMIUM is None:
    pytest.skip("no chromium on this machine: apt-get install chromium", allow_module_level=True)

PATIENCE = 60_000
# Small and quick, so that the whole of this file takes less than a minute.
START = "n_samples=300&teacher=h1&rows=sphere"


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with explorer(tmp_path_factory.mktemp("browser") / "store.db", ahead=False) as (found, _):
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

    def without_critical_steps(self) -> "Watched":
        """For what has nothing to do with them: some take ten seconds, and are not given up when nobody waits."""
        self.page.route("**/api/critical?*", lambda route: route.fulfill(json={"critical": []}))
        return self

    def settle(self) -> "Watched":
        """Wait until the numbers shown are final."""
        self.page.wait_for_selector(SETTLED)
        return self

    def reading(self, name: str) -> float:
        return float(self.page.inner_text(f"#reading-{name}").replace("−", "-").removesuffix(" %"))

    def until(self, condition: str) -> None:
        """Wait for something that is true of the page; its policy forbids Playwright's own way."""
        for _ in range(PATIENCE // 50):
            if self.page.evaluate(condition):
                return
            self.page.wait_for_timeout(50)
        raise AssertionError(condition)

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
    ("slide", "dim_per_sample-slider", 8, "dim_per_sample=0.3"),
    ("slide", "width_per_sample-slider", 19, "width_per_sample=1.75"),
    ("slide", "step_samples_per_sample-slider", 20, "step_samples_per_sample=2"),
    ("select", "activation-name", "tanh", "activation=tanh"),
    ("select", "teacher-name", "erf", "teacher=erf"),
    ("slide", "weight-2", 0.5, "h2"),
    # The laws of rows and readout matter with a large step.
    ("write", "alpha-number", "0.423", "step_exponent=0.423"),
    ("select", "rows", "gaussian", "!rows"),
    ("select", "readout", "rademacher", "readout=rademacher"),
    ("select", "initial_output", "order_one", "initial_output=order_one"),
    # The theory of inputs with a covariance is one of outputs that vanish.
    ("select", "initial_output", "vanishing", "!initial_output"),
    ("select", "inputs-name", "power(0.5)", "inputs=power%280.5%29"),
    ("select", "alignment-name", "eigenvalues", "alignment=eigenvalues"),
]


def test_every_control_changes_what_it_should(page: Watched) -> None:
    page.without_critical_steps()
    page.page.click("#more summary")
    for how, identity, value, wanted in CONTROLS:
        before = {name: page.page.inner_text(f"#reading-{name}") for name in ("test", "train")}
        if how == "select":
            page.page.select_option(f"#{identity}", str(value))
        else:
            getattr(page, how)(identity, value)
        # A chosen value is checked first; the address is written when it is taken.
        there = f"!location.search.includes('{wanted[1:]}=')" if wanted.startswith("!") else None
        page.until(there or f"decodeURIComponent(location.search).includes({json.dumps(unquote(wanted))})")
        page.settle()
        after = {name: page.page.inner_text(f"#reading-{name}") for name in ("test", "train")}
        assert before["test"] != after["test"], f"{identity} changed nothing"
        if wanted.startswith("!"):
            assert f"{wanted[1:]}=" not in page.page.url
        elif identity != "weight-2":
            assert wanted in page.page.url.replace("%2F", "/"), f"{identity}: {page.page.url}"
        else:
            assert "h2" in page.page.url
    page.page.select_option("#alignment-name", "typical")
    page.page.select_option("#inputs-name", "isotropic")
    page.until("!location.search.includes('inputs=')")
    page.settle()
    # A change of the ridge leaves the spectrum alone; a change of the step moves it.
    page.slide("step_exponent", 55)
    page.page.wait_for_selector("#chart-spectrum[data-exponent='0.45'] .spike-dot")
    assert "spike 1" in (page.page.get_attribute("#chart-spectrum svg", "aria-label") or "")


REFUSED = [
    ("activation", "import os", "unknown name 'import'"),
    ("ridge", "-1", "ridge must be positive and finite, got -1.0"),
    ("noise_std", "abc", "'abc' is not a number"),
    ("n_samples", "3", "n_samples must be at least 10 here, got 3"),
    ("n_samples", "30.5", "'30.5' is not a whole number"),
    ("size-dim", "abc", "'abc' is not a whole number"),
    ("size-dim", "0", "dim must be at least 2 here, got 0"),
    ("alpha-number", "7", "step_exponent must be at most 0.5 here, got 7"),
    ("eta-number", "1e9", "step_size must lie between"),
]


def test_a_bad_value_is_refused_at_its_field_and_the_old_one_kept(page: Watched) -> None:
    page.page.select_option("#activation-name", "")
    before = {name: page.page.input_value(f"#{name}") for name, _, _ in REFUSED}
    readings, place = page.page.inner_text("#readings"), page.page.url
    for name, value, sentence in REFUSED:
        page.write(name, value)
        page.page.wait_for_selector(f"#refusal:has-text({json.dumps(sentence)})")
        box = page.page.locator("#refusal").bounding_box()
        field = page.page.locator(f"#{name}").bounding_box()
        assert abs(box["y"] - field["y"]) < 120
        assert page.page.input_value(f"#{name}") == before[name]
    assert page.page.inner_text("#readings") == readings
    assert page.page.url == place
    page.page.select_option("#activation-name", "")
    page.write("activation", "tanh(2*x)")
    page.page.wait_for_timeout(600)
    page.settle()
    assert page.page.locator("#refusal").count() == 0
    assert "tanh" in page.page.url


def test_an_address_that_says_nonsense_is_told_so(browser: Any, address: str) -> None:
    page = Watched(browser, address).open("n_samples=300&ridge=-3")
    assert "ridge must be positive and finite, got -3.0" in page.page.inner_text("#message")
    assert page.page.input_value("#ridge") == "0.1"
    assert page.page.input_value("#n_samples") == "300"
    page.close()


def test_undo_redo_reset_and_the_browsers_back(page: Watched) -> None:
    page.page.select_option("#readout", "rademacher")
    page.page.wait_for_selector("#undo:not([disabled])")
    page.write("noise_std", "0.9")
    page.page.wait_for_url("**noise_std=0.9**")
    page.page.go_back()
    page.until("document.querySelector('#noise_std').value === '0.5'")
    assert page.page.input_value("#readout") == "rademacher"
    page.page.click("#undo")
    page.until("document.querySelector('#readout').value === 'gaussian'")
    assert page.page.is_disabled("#undo")
    page.page.click("#redo")
    page.until("document.querySelector('#readout').value === 'rademacher'")
    page.settle()
    page.page.click("#reset")
    page.until("document.querySelector('#n_samples').value === '1000'")
    page.settle()


def test_the_first_screen_holds_both_charts_the_slider_and_simulate(browser: Any, address: str) -> None:
    page = Watched(browser, address, 1280, 720).open()
    page.page.wait_for_selector("#chart-spectrum path.bulk")
    page.page.wait_for_timeout(300)
    boxes = {
        name: page.page.locator(f"#{name}").bounding_box()
        for name in ("view-errors", "view-spectrum", "step", "simulate", "play")
    }
    for box in boxes.values():
        assert box["y"] + box["height"] <= 720
        assert box["x"] + box["width"] <= 1280
    assert boxes["view-errors"]["y"] == boxes["view-spectrum"]["y"]
    assert boxes["step"]["y"] >= boxes["view-errors"]["y"] + boxes["view-errors"]["height"]
    # Values under the pointer.
    chart = page.page.locator("#chart-test svg").bounding_box()
    page.page.mouse.move(chart["x"] + chart["width"] / 2, chart["y"] + 100)
    assert "test" in page.page.inner_text("#chart-test .under")
    # The sentence's numbers are controls.
    alpha = page.page.input_value("#alpha-number")
    page.page.focus("#told-alpha")
    page.page.keyboard.press("ArrowRight")
    assert float(page.page.input_value("#alpha-number")) == pytest.approx(float(alpha) + 0.01)
    assert page.page.inner_text("#told-alpha") == page.page.input_value("#alpha-number")
    # It plays.
    page.page.click("#play")
    page.until("Number(document.querySelector('#alpha-number').value) > 0.34")
    page.page.click("#play")
    page.settle()
    page.close()


def test_presentation_and_things_to_cause(page: Watched) -> None:
    page.page.click("#present")
    assert page.page.is_hidden("#form")
    # Digits are the numbers that views carry.
    for key, view in (("3", "view-learned"), ("ArrowDown", "view-network"), ("1", "view-errors")):
        page.page.keyboard.press(key)
        shown = [node.get_attribute("id") for node in page.page.locator(".view").all() if node.is_visible()]
        assert shown == [view]
    alpha = float(page.page.input_value("#alpha-number"))
    page.page.keyboard.press("ArrowRight")
    assert float(page.page.input_value("#alpha-number")) == pytest.approx(alpha + 0.01)
    # The space bar plays, though the button that began the presentation was pressed last.
    page.page.keyboard.press(" ")
    page.until(f"Number(document.querySelector('#alpha-number').value) > {alpha + 0.03}")
    page.page.keyboard.press(" ")
    assert page.page.is_hidden("#form")
    page.page.keyboard.press("0")
    assert page.page.is_visible("#view-errors")
    assert page.page.is_visible("#view-spectrum")
    page.page.keyboard.press("Escape")
    assert page.page.is_visible("#form")
    page.page.select_option("#task-menu", label="A spike")
    page.page.wait_for_selector("#chart-spectrum[data-exponent='-0.1']")
    page.settle()
    assert "until a spike" in page.page.inner_text("#task-body")
    page.slide("step_exponent", 40)
    page.page.wait_for_selector("#task-body:has-text('There')")
    page.page.wait_for_selector("#critical .leaves")
    page.page.click("#task-end")
    page.page.select_option("#task-menu", label="Guess, then see")
    assert page.page.locator("#chart-test path.theory").count() == 0
    chart = page.page.locator("#chart-test svg").bounding_box()
    for i in range(5):
        page.page.mouse.click(
            chart["x"] + chart["width"] * (0.3 + 0.12 * i), chart["y"] + chart["height"] / 2
        )
    page.page.click("#task-next")
    page.page.wait_for_selector("#chart-test path.theory")
    assert "off by" in page.page.inner_text("#task-body")
    page.page.wait_for_selector("#cancel:not([hidden])")
    page.page.click("#cancel")
    page.page.wait_for_selector("#simulate:not([disabled])")
    page.page.click("#task-end")


def test_the_network_is_seen(page: Watched) -> None:
    page.page.locator("#view-network").scroll_into_view_if_needed()
    page.page.wait_for_selector("#chart-after .slope")

    def slopes(chart: str) -> list[float]:
        lines = page.page.locator(f"#chart-{chart} .slope").all()
        return [abs(float(line.get_attribute("y1")) - float(line.get_attribute("y2"))) for line in lines]

    page.slide("step_exponent", 60)
    assert len(slopes("after")) == 9
    assert max(slopes("after")) > 2 * max(slopes("before"))
    assert page.page.locator("#chart-fitted .labels circle").count() > 100


def test_a_second_step_is_added_moved_and_taken_away(page: Watched) -> None:
    page.page.select_option("#teacher-name", "t1 + t1*t2")
    page.page.click("#second-on")
    page.settle()
    page.until("document.getElementById('told-second').textContent.includes('lowers the test error')")
    assert page.page.is_visible("#view-second")
    assert not page.page.is_visible("#view-spectrum")
    (row,) = [
        predicted(
            *("--activation", "relu", "--teacher", "t1 + t1*t2", "--noise-std", "0.5", "--rows", "sphere"),
            *("--n-samples", "300", "--dim", "150", "--width", "225", "--ridge", "0.1"),
            *("--step-exponent", "0.3", "--next-step-exponent", "0.3"),
        )
    ]
    assert f"{row['test_error']:.3f}" in page.page.inner_text("#told-second")
    # A move of its slider needs no new numbers.
    asked = len(page.asked)
    page.slide("next_step_exponent", 30)
    page.until("document.getElementById('told-second').textContent.includes('α₂ = 0.50')")
    assert not any("api/second" in url for url in page.asked[asked:])
    page.page.click("[data-second=overlaps]")
    assert page.page.locator("#chart-second path.overlap").count() == 4
    # The spectrum after both steps is asked for once it is seen.
    assert not any("api/spectrum/features" in url and "next_step" in url for url in page.asked)
    page.page.click("#view-second [data-beside=spectrum]")
    assert page.page.is_visible("#view-spectrum")
    page.until("document.getElementById('spectrum-at').textContent === 'after both steps'")
    page.until("document.getElementById('weights-at').textContent === 'after both steps'")
    for view in ("errors", "spectrum"):
        inside = (
            f"(node => node.scrollWidth <= node.clientWidth)(document.querySelector('#view-{view} header'))"
        )
        assert page.page.evaluate(inside)
    page.page.click("#second-on")
    page.until("document.getElementById('spectrum-at').textContent === ''")
    assert not page.page.is_visible("#second-line")
    page.page.wait_for_selector("#chart-spectrum .spike-dot")
    # No theory of the spectrum for steps by the gradient's sign: words, and nothing in the console.
    page.page.click("#more summary")
    page.page.select_option("#step_rule", "sign")
    page.until(
        "document.querySelector('#chart-spectrum svg').getAttribute('aria-label').includes('sign steps')"
    )


def test_the_inputs_spectrum_is_drawn_by_hand(page: Watched) -> None:
    page.page.click("#more > summary")
    page.page.eval_on_selector("#chart-inputs", "node => node.scrollIntoView({block: 'center'})")
    box = page.page.locator("#chart-inputs svg").bounding_box()
    before = page.reading("test")
    page.page.mouse.move(box["x"] + 60, box["y"] + 85)
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + 60, box["y"] + 40, steps=4)
    page.page.mouse.up()
    page.settle()
    words = page.page.input_value("#inputs")
    assert words.startswith("levels(")
    levels = [float(part) for part in words[7:-1].split(",")]
    assert max(levels) > 1.3
    assert sum(levels) == pytest.approx(len(levels), abs=0.01)
    assert page.reading("test") != before
    # The same by keys.
    page.page.focus("#chart-inputs svg")
    page.page.keyboard.press("ArrowUp")
    page.settle()
    assert page.page.input_value("#inputs") != words


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


def test_presets_theme_and_exports(page: Watched) -> None:
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
        if view == "learned":
            # Chromium lets one page save ten files in a row.
            page.page.reload()
            page.settle()
            page.page.wait_for_selector("#chart-weights path.bulk")
        for kind, first in (("SVG", b"<svg"), ("PNG", b"\x89PNG"), ("CSV", b"")):
            page.page.click(f"#view-{view} .save summary")
            with page.page.expect_download() as waiting:
                page.page.click(f".export[data-view={view}] button:text-is('{kind}')")
            content = Path(waiting.value.path()).read_bytes()
            assert content.startswith(first)
            assert len(content) > 300
            if kind == "CSV" and view == "errors":
                assert len(content.splitlines()) > 61
            if kind == "SVG":
                check_picture(content.decode(), view)
    before = page.page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.page.click("#theme")
    assert page.page.evaluate("getComputedStyle(document.body).backgroundColor") != before


def check_picture(svg: str, view: str) -> None:
    """A saved picture says what it shows, and its letters are filled over their halo, not under it."""
    from xml.etree import ElementTree

    assert "n = 2000, d = 1000, N = 1500, n₀ = 2000, λ = 0.1, α = 0.30" in svg
    assert {"errors": "best linear predictor", "spectrum": "predicted bulk"}.get(view, "") in svg
    haloed = [
        node
        for node in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
        if node.get("stroke", "none") != "none"
    ]
    assert haloed or view == "learned"
    assert all((node.get("paint-order") or "").startswith("stroke") for node in haloed)


def test_a_picture_whose_letters_are_covered_is_found() -> None:
    says = "n = 2000, d = 1000, N = 1500, n₀ = 2000, λ = 0.1, α = 0.30 best linear predictor"
    bad = f'<svg xmlns="http://www.w3.org/2000/svg"><text stroke="#fff">{says}</text></svg>'
    with pytest.raises(AssertionError):
        check_picture(bad, "errors")
    check_picture(bad.replace("<text", '<text paint-order="stroke"'), "errors")


COVERED = """() => {
    const card = document.querySelector("#tour").getBoundingClientRect();
    const view = document.querySelector(".lit").getBoundingClientRect();
    return card.left < view.right && view.left < card.right && card.top < view.bottom && view.top < card.bottom;
}"""


@pytest.mark.parametrize(("width", "height"), [(1280, 720), (375, 812)])
def test_the_tour_covers_nothing_and_leaves_no_trace(
    browser: Any, address: str, width: int, height: int
) -> None:
    page = Watched(browser, address, width, height).without_critical_steps().open()
    place, readings = page.page.url, page.page.inner_text("#told-error")
    page.page.click("#tour-start")
    titles = []
    for _ in range(7):
        titles.append(page.page.inner_text("#tour-title"))
        page.page.wait_for_timeout(700)
        page.settle()
        assert not page.page.evaluate(COVERED), titles[-1]
        if titles[-1] == "Towards the staircase":
            assert page.page.input_value("#activation") == "hermite(0, 1, 0.5, 0.2, 0.1)"
        page.page.click("#tour-next")
    assert len(set(titles)) == 7
    page.page.wait_for_selector("#tour", state="hidden")
    page.settle()
    assert page.page.url == place
    assert page.page.inner_text("#told-error") == readings
    # The browser's Back ends it and stays on the page.
    page.page.click("#tour-start")
    page.page.go_back()
    page.page.wait_for_selector("#tour", state="hidden")
    page.settle()
    assert page.page.url == place
    page.close()


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
    page.page.focus("#view-errors .ask")
    page.page.keyboard.press("Enter")
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
        page.page.click(f"[data-errors={chart}]")
        page.page.wait_for_selector(f"#chart-{chart} .simulation circle")
        # Every point, with its bar, lies inside the axes.
        top = page.page.locator(f"#chart-{chart} .grid .tick").last.bounding_box()["y"]
        assert all(
            node.bounding_box()["y"] > top - 12
            for node in page.page.locator(f"#chart-{chart} .simulation line").all()
        )
    # They stay, paler, when the problem changes, and are found again.
    page.page.click("[data-errors=test]")
    page.slide("noise_std-slider", 8)
    page.page.wait_for_selector("#chart-test .kept circle")
    page.page.wait_for_url("**noise_std**")
    page.page.go_back()
    page.page.wait_for_selector("#chart-test .simulation circle")
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


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize(("width", "height"), [(375, 812), (1920, 1080)])
def test_the_layout_holds(browser: Any, address: str, width: int, height: int, steps: int) -> None:
    second = "&next_step_exponent=0.3" if steps == 2 else ""
    page = Watched(browser, address, width, height).open(START + second)
    page.page.wait_for_selector("#chart-second path.theory" if second else "#chart-spectrum path.bulk")
    page.page.wait_for_selector("#chart-weights path.bulk")
    assert page.page.evaluate("document.documentElement.scrollWidth") <= width
    page.settle()
    # All at one moment: a chart that comes in between would move those that are asked for after it.
    boxes = page.page.evaluate(
        """() => [...document.querySelectorAll(".view")].filter(view => view.checkVisibility()).map(view => {
            const {x, y, width, height} = view.getBoundingClientRect();
            return {x, y, width, height};
        })"""
    )
    assert len(boxes) == 5
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
def test_the_static_version_opens_from_a_file(browser: Any, tmp_path: Path) -> None:
    subprocess.run([PROGRAM, "explore", "--export", str(tmp_path), "--size", "small", "-q"], check=True)
    page = Watched(browser, (tmp_path / "index.html").as_uri()).open("")
    page.page.wait_for_selector("#chart-spectrum path.bulk")
    assert page.page.is_hidden("#simulate")
    before = page.page.inner_text("#reading-test")
    page.slide("step_exponent", 55)
    page.settle()
    assert page.page.inner_text("#reading-test") != before
    page.page.select_option("#preset", "1")
    page.page.wait_for_timeout(500)
    page.settle()
    assert page.page.input_value("#teacher") == "h1 + h2/sqrt(2)"
    page.page.locator("#view-network").scroll_into_view_if_needed()
    page.page.wait_for_selector("#chart-after .slope")
    # A second step where the preset has one, with its spectra.
    assert page.page.is_hidden("#second-on")
    page.page.select_option("#preset", "2")
    page.page.wait_for_selector("#chart-second path.theory")
    page.until("document.getElementById('told-second').textContent.includes('the test error')")
    page.page.click("#view-second [data-beside=spectrum]")
    page.until("document.getElementById('spectrum-at').textContent === 'after α = 0.50, α₂ = 0.50'")
    page.page.select_option("#preset", "1")
    page.page.wait_for_timeout(500)
    page.settle()
    assert page.page.is_hidden("#view-second")
    # Its cards speak of what it has.
    page.page.click("#tour-start")
    told = []
    while page.page.is_visible("#tour"):
        told.append(page.page.inner_text("#tour-body"))
        page.page.click("#tour-next")
        page.page.wait_for_timeout(300)
    assert len(told) >= 5
    assert not any("Simulate" in body or "10⁹" in body for body in told)
    page.settle()
    assert page.page.input_value("#teacher") == "h1 + h2/sqrt(2)"
    # A link restores the place.
    page.page.reload()
    page.settle()
    assert page.page.input_value("#teacher") == "h1 + h2/sqrt(2)"
    page.close()


FAINT = """() => {
    const numbers = (color) => (color.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    const linear = (c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => [r, g, b].map(c => linear(c / 255))
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
    const ground = (node) => {
        const layers = [];
        for (let at = node; at; at = at.parentElement) {
            const [r, g, b, a = 1] = numbers(getComputedStyle(at).backgroundColor);
            layers.push([r, g, b, a]);
            if (a === 1) break;
        }
        const over = (under, [r, g, b, a]) => [r, g, b].map((c, i) => a * c + (1 - a) * under[i]);
        return layers.reduceRight(over, [255, 255, 255]);
    };
    return [...document.querySelectorAll("body *")].filter(node =>
        node.checkVisibility({ visibilityProperty: true })
        && !node.closest("[disabled], #tip, #toast, option")
        && [...node.childNodes].some(child => child.nodeType === 3 && child.textContent.trim())).map(node => {
            const style = getComputedStyle(node);
            const drawn = node instanceof SVGElement;
            const letters = numbers(drawn ? style.fill : style.color);
            const [one, other] = [light(letters), light(ground(node.closest("svg")?.parentElement ?? node))];
            return [(Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05), node.outerHTML.slice(0, 120)];
        }).filter(([ratio]) => ratio < 4.5);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_can_be_told_from_their_ground(browser: Any, address: str, scheme: str) -> None:
    page = Watched(browser, address)
    page.page.emulate_media(color_scheme=scheme)
    page.open()
    page.page.wait_for_selector("#chart-spectrum path.bulk")
    page.page.click("#more summary")
    for button in page.page.locator(".ask:visible").all():
        button.click()
    assert page.page.evaluate(FAINT) == []
    page.page.click("#second-on")
    page.page.wait_for_selector("#chart-second path.theory")
    page.page.click("#view-second .ask")
    assert page.page.evaluate(FAINT) == []
    page.page.evaluate("document.querySelector('#title-errors').style.color = 'rgb(128 128 128 / 100%)'")
    assert page.page.evaluate(FAINT) != []
    page.close()
