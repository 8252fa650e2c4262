"""The explorer's server: its numbers are the library's, and it does nothing that it should not."""

import asyncio
import base64
import contextlib
import gzip
import json
import os
import pickle
import re
import shlex
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from firststep.numerics.fixedpoint import ConvergenceError
from firststep.theory import predict
from firststep.theory.limits import staircase
from firststep.theory.spectra.spectrum import critical_steps, predict_spectrum

pytest.importorskip("fastapi", reason="the explorer needs firststep[web]")

import requests
import uvicorn

from firststep.experiment import parse, run
from firststep.explorer import app as server
from firststep.explorer import connections, pages, views, wall
from firststep.explorer.export import bundle
from firststep.explorer.pool import LostError, Pool, TooSlowError, _sendable
from firststep.explorer.service import Cache, Overtaken, Service
from firststep.explorer.simulation import RefusedError, check_budget, stored
from firststep.explorer.state import (
    PRESETS,
    State,
    as_command,
    as_python,
    as_toml,
    choices,
    exponents,
    ladders,
    spectra_toml,
)
from firststep.setting import FIELDS, OutsideTheoryWarning
from firststep.store import open_store

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "src" / "firststep" / "explorer" / "page"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("explorer") / "results" / "store.db")


class Client(requests.Session):
    """A program that talks to a server in this process."""

    def __init__(self, app: Any) -> None:
        super().__init__()
        self.app = app
        self.base = ""

    def request(self, method: str, url: str, **options: Any) -> requests.Response:  # type: ignore[override]
        return super().request(method, f"{self.base}{url}", timeout=120, **options)


@contextmanager
def running(app: Any) -> Iterator[Client]:
    """Serve an application on a free port, in a thread."""
    listener = socket.create_server(("127.0.0.1", 0))
    machine = uvicorn.Server(server.server_settings(app))
    thread = threading.Thread(target=machine.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        with Client(app) as client:
            client.base = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield client
    finally:
        machine.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def client(store: str) -> Iterator[Client]:
    with running(server.create_app(store, pool=Pool(1, time_limit=60.0))) as found:
        yield found


def token(client: Client) -> dict[str, str]:
    found = re.search(r'name="firststep-token" content="([^"]+)"', client.get("/").text)
    assert found
    return {"x-firststep-token": found[1]}


SMALL: dict[str, Any] = {"n_samples": 200, "teacher": "h1", "ridge": 0.2, "step_exponent": 0.2}


def test_curves_are_the_predictions(client: Client) -> None:
    answer = client.get("/api/curves", params=SMALL).json()
    state = State(**SMALL)
    # The page asks for 1e-4; in so few dimensions the default is 1e-3.
    expected = predict(
        state.problem, state.sizes, step_exponents=exponents(), ridges=state.ridge, tolerance=views.EXACT
    )
    for name in ("test", "train"):
        wanted = getattr(expected, f"{name}_error")[:, 0]
        # Twice as far, because the next order is made of pieces, over which the page interpolates.
        np.testing.assert_allclose(answer["errors"]["panels"][name]["unified"], wanted, rtol=2 * views.FAIR)
        assert not np.allclose(answer["errors"]["panels"][name]["unified"], 1.001 * wanted, rtol=views.FAIR)
    here = answer["positions"][exponents().index(0.2)]
    assert float(here["text"]["test"]) == pytest.approx(expected.test_error[30, 0], rel=1e-4)
    assert not answer["draft"]
    levels = predict(state.problem, state.sizes, step_exponents=0.2, ridges=0.2, theory="staircase")
    shown = {level["from"]: level["y"] for level in answer["errors"]["panels"]["test"]["staircase"]}
    assert shown[0.0] == pytest.approx(levels.test_error[0, 0], rel=1e-4)


@pytest.mark.parametrize("n", [300, 1e5, 1e9])
def test_a_draft_is_near_the_exact_curve(n: float) -> None:
    state = State(n_samples=n)
    frame, nodes = views.solve_frame(state.model_dump()), views.draft_nodes(n)
    rough = views.solve_points(state.model_dump(), [None, *nodes], views.DRAFT)
    draft = views.assemble(state, frame, rough, nodes, draft=True)
    fine = predict(state.problem, state.sizes, step_exponents=exponents(), ridges=state.ridge, tolerance=1e-4)
    found = np.array(draft["errors"]["panels"]["test"]["unified"])
    np.testing.assert_allclose(found, fine.test_error[:, 0], rtol=5e-3)


def test_with_few_dimensions_the_curves_are_fair_and_the_chosen_position_is_exact(client: Client) -> None:
    asked = {"n_samples": 120, "dim_per_sample": 0.1, "step_exponent": 0.3}
    answers = {
        quality: client.get("/api/curves", params=asked, headers={"x-firststep-quality": quality}).json()
        for quality in ("draft", "fair", "exact")
    }
    assert [answer["finer"] for answer in answers.values()] == ["fair", "exact", None]
    assert [answer["draft"] for answer in answers.values()] == [True, True, False]
    state = State(**asked)
    exact = predict(state.problem, state.sizes, step_exponents=0.3, ridges=state.ridge).test_error[0, 0]
    here = answers["exact"]["here"]
    assert here["exponent"] == 0.3
    assert here["test"] == pytest.approx(exact, rel=1e-4)
    # The draft is not checked, the fair curve is right to what a line's width shows.
    near = answers["fair"]["positions"][exponents().index(0.3)]["test"]
    assert near == pytest.approx(exact, rel=5e-3)
    # Once it is known, the better curve is shown while a slider moves, too.
    again = client.get("/api/curves", params=asked, headers={"x-firststep-quality": "draft"}).json()
    assert again["quality"] == "fair"


def test_a_position_between_those_of_the_slider(client: Client) -> None:
    answer = client.get("/api/curves", params=SMALL | {"step_size": 3.0}).json()
    state = State(**SMALL)
    expected = predict(state.problem, state.sizes, 3.0, ridges=state.ridge)
    assert answer["here"]["test"] == pytest.approx(expected.test_error[0, 0], rel=2e-5)
    assert answer["state"]["step_exponent"] == pytest.approx(np.log(3) / np.log(200), abs=1e-5)
    too_far = client.get("/api/curves", params=SMALL | {"step_size": 1e9})
    assert too_far.status_code == 422
    assert "step_size must lie between" in too_far.json()["detail"]


@pytest.mark.parametrize("of", ["features", "weights"])
def test_the_spectrum_is_the_prediction(client: Client, of: str) -> None:
    asked = SMALL | {"step_exponent": 0.3}
    answer = client.get(f"/api/spectrum/{of}", params=asked).json()
    state = State(**asked)
    expected = predict_spectrum(state.problem, state.sizes, state.eta, of=of, points=views.DENSITY_POINTS)
    assert not answer["draft"]
    assert answer["edges"] == pytest.approx(expected.edges, rel=1e-4)
    assert [10 ** spike["at"] for spike in answer["outliers"]] == pytest.approx(
        [outlier.eigenvalue for outlier in expected.outliers], rel=1e-6
    )
    assert len(answer["outliers"]) == 1
    # Areas are shares of eigenvalues.
    area = sum(np.trapezoid(piece["y"], piece["x"]) for piece in answer["pieces"])
    assert area == pytest.approx(1 - expected.atom, abs=0.03)


def test_a_moving_slider_gets_drafts_of_spectra_until_the_refined_one_is_there(client: Client) -> None:
    moving = {"x-firststep-quality": "draft"}
    for alpha, ridge in ((0.34, 0.2), (0.35, 0.2), (0.36, 0.2)):
        asked = SMALL | {"step_exponent": alpha, "ridge": ridge}
        draft = client.get("/api/spectrum/features", params=asked, headers=moving).json()
        assert draft["draft"]
        state = State(**asked)
        expected = predict_spectrum(state.problem, state.sizes, state.eta, check=False)
        assert [10 ** spike["at"] for spike in draft["outliers"]] == pytest.approx(
            [outlier.eigenvalue for outlier in expected.outliers], rel=1e-6
        )
    assert not client.get("/api/spectrum/features", params=asked).json()["draft"]
    # Now it is known, for every ridge.
    again = client.get("/api/spectrum/features", params=asked | {"ridge": 0.7}, headers=moving).json()
    assert not again["draft"]


def test_what_was_learned_adds_up(client: Client) -> None:
    answer = client.get("/api/curves", params=SMALL).json()
    here = answer["positions"][-1]
    bars = answer["learned"]["bars"]
    assert bars["wanted"] == pytest.approx([1, 0, 0, 0, 0, 0], abs=1e-9)
    assert 0.5 < here["captured"][0] < 1
    assert all(0 <= got <= there + 1e-9 for got, there in zip(here["captured"], bars["wanted"], strict=True))


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"activation": "__import__('os').system('id')"}, "may use"),
        ({"activation": "exp(x**2)"}, ""),
        ({"activation": "sign"}, ""),
        ({"teacher": "0*h1", "noise_std": 0}, "nothing to fit"),
        ({"activation": "0"}, "is constant"),
        ({"ridge": 0}, "ridge"),
        ({"ridge": "nan"}, "ridge"),
        ({"n_samples": 1e31}, "n_samples"),
        ({"n_samples": 10, "dim_per_sample": 0.01}, "at least 2"),
        ({"rows": "round"}, "rows"),
        ({"colour": "red"}, "colour"),
        ({"activation": "x" * 201}, "activation"),
    ],
)
def test_a_bad_state_is_refused_with_the_reason(client: Client, asked: dict[str, Any], reason: str) -> None:
    answer = client.get("/api/curves", params=asked)
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]
    assert len(answer.json()["detail"]) > 10


@pytest.mark.parametrize(
    ("asked", "field", "sentence"),
    [
        ({"ridge": "-1"}, "ridge", "ridge must be positive and finite, got -1.0"),
        ({"ridge": "1e9"}, "ridge", "ridge must be at most 10000 here, got 1e+09"),
        ({"noise_std": "nan"}, "noise_std", "'nan' is not a finite number"),
        ({"inputs": "flat"}, "inputs", "inputs must be one of isotropic, power"),
        ({"rows": "round"}, "rows", "rows must be one of gaussian, sphere; got 'round'"),
        ({"teacher": "t1 + t1*t7"}, "teacher", "at most 4 directions"),
        ({"colour": "red"}, "colour", "there is no field colour"),
        ({"activation": "x" * 300}, "activation", "may have 200 characters"),
    ],
)
def test_a_value_is_checked_in_the_command_lines_words(
    client: Client, asked: dict[str, str], field: str, sentence: str
) -> None:
    (refusal,) = client.get("/api/check", params=asked).json()["refused"]
    assert refusal["field"] == field
    assert sentence in refusal["sentence"]
    assert client.get("/api/check", params={"ridge": "0.2", "inputs": "power(0.5)"}).json() == {"refused": []}


def test_a_drawn_network_fans_out_along_z(client: Client) -> None:
    found = client.get("/api/network", params=SMALL).json()
    readout, change = np.array(found["readout"]), np.array(found["slopes"]["change"])
    # The step adds c_1 a |b| z to w·x, up to the gradient's remainder.
    assert np.corrcoef(readout, change)[0, 1] > 0.97
    z, changes = np.array(found["z"]), np.array(found["change"])
    fitted = changes @ z / (z @ z)
    np.testing.assert_allclose(fitted[[0, -1]], change[[0, -1]], rtol=0.1)
    # With a step the fit has more of the labels' mean.
    teacher, fits = np.array(found["teacher"]), np.array(found["fitted"])
    assert np.abs(fits[-3] - teacher).mean() < np.abs(fits[0] - teacher).mean()


def test_the_parts_of_the_test_error_add_up(client: Client) -> None:
    answer = client.get("/api/curves", params=SMALL).json()
    for place in answer["positions"]:
        whole = answer["errors"]["noise"] + place["missed"] + place["spread"]
        assert whole == pytest.approx(place["test"], rel=1e-3)
    assert answer["positions"][-1]["missed"] < answer["positions"][0]["missed"]


def test_critical_steps_are_those_of_the_theory(client: Client) -> None:
    state = State(**SMALL)
    first, *_ = critical_steps(state.problem, state.sizes, count=3)
    found = client.get("/api/critical", params=SMALL).json()["critical"]
    assert found[0]["at"] == pytest.approx(float(state.sizes.step_exponent(first)), abs=1e-3)


def test_the_inputs_spectrum_is_shown_and_can_be_drawn() -> None:
    frame = views.solve_frame(State(n_samples=200, inputs="power(1)", alignment="eigenvalues").model_dump())
    inputs = frame["inputs"]
    eigenvalues, shares = inputs["eigenvalues"], inputs["teacher"]
    assert eigenvalues == sorted(eigenvalues, reverse=True)
    assert np.mean(shares) == pytest.approx(1)
    assert shares[0] > 5 * shares[-1]
    assert not inputs["loud"]
    levels = inputs["editable"]["levels"]
    assert len(levels) == views.LEVELS
    assert levels == sorted(levels, reverse=True)
    # What is written by hand comes back as it was written.
    again = views.solve_frame(State(n_samples=200, inputs="levels(1.8, 0.9, 0.3)").model_dump())["inputs"]
    assert again["editable"]["levels"] == pytest.approx([1.8, 0.9, 0.3])
    assert again["eigenvalues"] == again["editable"]["levels"]
    assert views.solve_frame(State(n_samples=200).model_dump())["inputs"]["isotropic"]
    loud = State(n_samples=200, inputs="spiked(10, overlap=1)").model_dump()
    assert views.solve_frame(loud)["inputs"]["loud"]


def test_lines_of_theories_that_do_not_know_the_problem_are_left_out() -> None:
    """The staircase knows no loud direction; the line without a step is that of random features."""
    for words in ({"inputs": "levels(0.2, 1.8)"}, {"teacher": "t1 + t1*t2"}):
        known = State(n_samples=200, **words)
        levels = views.solve_frame(known.model_dump())["levels"]
        limit = staircase.solve(known.problem, known.sizes, 1.0, known.ridge, n_spikes=1)
        assert levels[1]["test"] == pytest.approx(limit.test_error[0, 0])
    state = State(n_samples=200, inputs="spiked(30, overlap=0)")
    frame = views.solve_frame(state.model_dump())
    assert frame["levels"] == []
    # The spike's law of isotropic weights does not hold either: 0.30 where drawn networks have 0.46.
    assert np.isnan(frame["weights"]["alignment"]).all()
    assert frame["weights"]["critical"] is None
    nodes = views.draft_nodes(state.n_samples)
    solved = views.solve_points(state.model_dump(), [None, *nodes.tolist()], views.DRAFT)
    drawn = views.assemble(state, frame, solved, nodes, True)
    known = predict(state.problem, state.sizes, 0.0, state.ridge, theory="random_features").test_error[0, 0]
    assert drawn["errors"]["panels"]["test"]["random_features"] == pytest.approx(known, rel=1e-3)
    assert drawn["errors"]["panels"]["test"]["staircase"] == []


def test_steps_without_a_theory_have_words_in_its_place() -> None:
    state = State(n_samples=200, step_rule="sign")
    frame = views.solve_frame(state.model_dump())
    solved = views.solve_points(state.model_dump(), [None, *exponents()], views.DRAFT)
    drawn = views.assemble(state, frame, solved, np.array(exponents()), True)
    assert drawn["notes"] == ["the unified theory does not know sign steps: simulate them"]
    assert drawn["positions"][40]["text"]["test"] == "–"
    with pytest.raises(ValueError, match="sign steps"):
        views.solve_spectrum(state.model_dump(), "features", exact=False)
    assert views.solve_critical(state.model_dump()) == {"critical": []}


def test_a_refusal_is_an_answer_for_the_page_and_a_status_for_others(client: Client) -> None:
    asked = SMALL | {"inputs": "power(0.5)"}
    for path, values in (("/api/second", asked), ("/api/curves", SMALL | {"ridge": -1.0})):
        plain = client.get(path, params=values)
        assert plain.status_code == 422
        page = client.get(path, params=values, headers={"x-firststep-client": "page"})
        assert page.status_code == 200
        assert page.json() == {"refusal": plain.json()["detail"], "status": 422}


def test_teachers_of_several_directions_have_a_mean_along_the_first() -> None:
    state = State(n_samples=200, teacher="t1 + t1*t2", noise_std=0.1)
    frame = views.solve_frame(state.model_dump())
    assert frame["wanted"][1] == pytest.approx(1)
    assert frame["tail"] == pytest.approx(1)
    assert frame["best_linear"] == pytest.approx(1.01)
    # t1 t2 has no gradient in the mean: nothing that one step sees.
    blind = views.solve_frame(State(n_samples=200, teacher="t1*t2").model_dump())
    assert np.abs(blind["wanted"]).max() == 0


def test_the_second_step_is_the_prediction(client: Client) -> None:
    asked = SMALL | {"teacher": "t1 + t1*t2", "step_exponent": 0.35}
    found = client.get("/api/second", params=asked).json()
    state = State(**asked)
    steps = {"step_exponents": 0.35, "ridges": state.ridge, "next_step_exponents": [-0.1, 0.5]}
    with pytest.warns(OutsideTheoryWarning, match="a second step can see"):
        exact = predict(state.problem, state.sizes, **steps)
    del steps["next_step_exponents"]
    with pytest.warns(OutsideTheoryWarning, match="a second step can see"):
        one = predict(state.problem, state.sizes, **steps)
    errors = found["panels"]["test"]["errors"]
    assert [errors[0], errors[-1]] == pytest.approx(exact.test_error[:, 0].tolist(), rel=1e-4)
    assert found["panels"]["test"]["bar"][-1] == pytest.approx(exact.values["test_error_bar"][1, 0], rel=1e-3)
    assert found["panels"]["train"]["one_step"] == pytest.approx(one.train_error[0, 0], rel=1e-4)
    keys = [line["key"] for line in found["overlaps"]["lines"]]
    assert keys == ["top1_t1", "top1_t2", "top2_t1", "top2_t2"]
    assert "lowers the test error" in found["positions"][-1]["text"]["told"]


@pytest.mark.parametrize("of", ["features", "weights"])
def test_with_a_second_step_the_spectrum_is_the_one_after_both(of: str) -> None:
    state = State(**SMALL | {"teacher": "t1 + t1*t2", "step_exponent": 0.35, "next_step_exponent": 0.5})
    solved = views.solve_spectrum(state.model_dump(), of, exact=False)
    found = views.draw_spectrum(state, of, solved, draft=False)
    expected = predict_spectrum(
        state.problem, state.sizes, step_exponent=0.35, next_step_exponents=0.5, of=of, points=120
    )
    assert (solved["final"], found["steps"], found["said"]) == (True, 2, "")
    assert found["edges"] == pytest.approx(expected.edges, rel=1e-4)
    assert [10 ** spike["at"] for spike in found["outliers"]] == pytest.approx(
        [outlier.eigenvalue for outlier in expected.outliers], rel=1e-6
    )
    # The direction of the first step, and the one that only the second sees.
    seen = [{entry["name"]: entry["value"] for entry in spike["overlaps"]} for spike in found["outliers"]]
    assert seen[0]["t₁"] > 0.4
    assert max(spike.get("t₂", 0) for spike in seen[1:]) > 0.02


def test_a_moving_second_slider_gets_what_is_final_at_once(client: Client) -> None:
    moving = {"x-firststep-quality": "draft"}
    asked = SMALL | {"step_exponent": 0.35, "next_step_exponent": 0.5}
    found = client.get("/api/spectrum/weights", params=asked, headers=moving).json()
    assert (found["steps"], found["draft"]) == (2, False)
    # Once the second step is taken away the spectrum is that of one.
    del asked["next_step_exponent"]
    alone = client.get("/api/spectrum/weights", params=asked, headers=moving).json()
    assert (alone["steps"], alone["draft"]) == (1, True)
    assert alone["outliers"][0]["at"] < found["outliers"][0]["at"]


def test_where_two_steps_have_no_spectrum_the_first_ones_is_shown_with_the_reason(client: Client) -> None:
    asked = SMALL | {"inputs": "power(0.5)", "step_exponent": 0.3}
    alone = client.get("/api/spectrum/weights", params=asked).json()
    found = client.get("/api/spectrum/weights", params=asked | {"next_step_exponent": 0.3}).json()
    assert (found["steps"], found["outliers"]) == (1, alone["outliers"])
    assert "isotropic inputs" in found["said"]
    assert alone["said"] == ""


def test_spectra_of_drawn_networks_have_both_steps() -> None:
    state = State(n_samples=80, step_exponent=0.3, next_step_exponent=0.4)
    (cell,) = parse(spectra_toml(state, 2)).sweep.next_step_size
    assert cell == pytest.approx(80**0.4)


def test_a_second_step_is_simulated_and_kept(tmp_path: Path) -> None:
    state = State(
        n_samples=80, teacher="t1 + t1*t2", noise_std=0.1, step_exponent=0.3, next_step_exponent=0.4
    )
    experiment = parse(as_toml(state, 2, theory=False))
    path = str(tmp_path / "store.db")
    with open_store(path) as store:
        run(experiment, store, jobs=1)
    points = stored(state.model_dump(), path)
    assert points["points"] is None
    second = points["second"]
    assert second["exponents"] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]
    assert second["replicas"] == 2
    assert second["test"]["mean"][-1] < second["test"]["mean"][0]
    assert 0 <= second["top2_t2"]["mean"][-1] <= 1


def test_only_its_own_name_is_answered(client: Client) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example:8765", "", "localhost.evil"):
        assert client.get("/api/choices", headers={"host": host}).status_code == 400
    for host in ("127.0.0.1:1", "localhost", "[::1]:8765", "LOCALHOST:80"):
        assert client.get("/api/choices", headers={"host": host}).status_code == 200


def test_only_the_page_may_change_anything(client: Client) -> None:
    asked = {"state": SMALL, "replicas": 2}
    good = token(client)
    assert client.post("/api/simulations", json=asked).status_code == 403
    assert client.post("/api/simulations", json=asked, headers={"x-firststep-token": "x"}).status_code == 403
    for foreign in ({"origin": "http://evil.example"}, {"sec-fetch-site": "cross-site"}, {"origin": "null"}):
        assert client.post("/api/simulations", json=asked, headers=good | foreign).status_code == 403
        assert client.delete("/api/simulations/abc", headers=good | foreign).status_code == 403
    assert client.delete("/api/simulations/abc", headers=good).status_code == 404
    assert client.get("/api/simulations").status_code == 405


@pytest.mark.parametrize(
    "host", ["[::1].evil", "[::1]evil:80", "127.0.0.1:80:80", "localhost:evil", "[::1", "evil:80"]
)
def test_names_that_only_begin_like_its_own_are_refused(client: Client, host: str) -> None:
    assert client.get("/api/choices", headers={"host": host}).status_code == 400


def test_its_own_name_with_and_without_a_port(client: Client) -> None:
    for host in ("127.0.0.1", "localhost:8765", "[::1]", "[::1]:80", "LOCALHOST"):
        assert client.get("/api/choices", headers={"host": host}).status_code == 200


def test_other_sites_cannot_make_it_compute(client: Client) -> None:
    for site in ("cross-site", "same-site"):
        assert client.get("/api/choices", headers={"sec-fetch-site": site}).status_code == 403
        # A link to the page itself is no attack.
        assert client.get("/", headers={"sec-fetch-site": site}).status_code == 200
    for origin in ("http://[", "http://evil.example", "null", "//[x]"):
        found = client.get("/api/choices", headers={"origin": origin})
        assert found.status_code == 403, origin


def half_open(
    base: str, count: int, text: bytes = b"GET /api/choices HTTP/1.1\r\nHost: 127.0.0.1\r\n"
) -> list[socket.socket]:
    """Connections that send a part of a request."""
    port = int(base.rpartition(":")[2])
    found = []
    for _ in range(count):
        one = socket.create_connection(("127.0.0.1", port))
        one.sendall(text)
        found.append(one)
    return found


def test_half_sent_requests_keep_nobody_out(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "HEAD_LIMIT", 1.0)
    sockets = half_open(client.base, 250)
    try:
        with Client(client.app) as other:
            other.base = client.base
            assert other.get("/api/choices").status_code == 200
        time.sleep(1.6)
        assert len(connections.Connection.waiting) <= 2, "they are closed in time"
        for one in sockets:
            one.settimeout(5)
            # Closed by the server, with or without a farewell.
            with contextlib.suppress(ConnectionError):
                assert one.recv(1) == b""
    finally:
        for one in sockets:
            one.close()


def test_a_body_that_does_not_come_is_given_up(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "BODY_LIMIT", 0.5)
    head = b"POST /api/simulations HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-length: 900\r\n"
    (one,) = half_open(client.base, 1, head + b"content-type: application/json\r\n\r\n{")
    one.settimeout(10)
    with contextlib.suppress(ConnectionError):
        assert not one.recv(4096).startswith(b"HTTP/1.1 2")
    one.close()


def test_a_line_break_in_a_function_is_a_blank(client: Client) -> None:
    state = State(activation="relu(x)\n + 0.1*x", n_samples=60)
    assert parse(as_toml(state)).problem.activation == "relu(x) + 0.1*x"
    started = client.post(
        "/api/simulations",
        json={"state": state.model_dump(exclude={"step_size"}), "replicas": 2},
        headers=token(client),
    )
    assert started.status_code == 201, started.text
    assert wait_for(client, started.json()["id"])["status"] == "finished"


def test_an_empty_host_is_refused() -> None:
    with pytest.raises(ValueError, match="would listen everywhere"):
        server.serve("", 0, store="store.db")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at /proc")
def test_a_killed_server_leaves_nobody_at_work(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "firststep", "explore", "--no-open", "--port", "0", "--workers", "1"]
    process = subprocess.Popen(
        [*command, "--store", str(tmp_path / "store.db")],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stderr is not None
        base = re.search(r"http://[\d.:]+", process.stderr.readline())[0]  # type: ignore[index]
        page = requests.get(base, timeout=30).text
        key = re.search(r'name="firststep-token" content="([^"]+)"', page)[1]  # type: ignore[index]
        asked = {"state": {"n_samples": 500}, "replicas": 64}
        headers = {"x-firststep-token": key}
        answer = requests.post(f"{base}/api/simulations", json=asked, headers=headers, timeout=30)
        assert answer.status_code == 201, answer.text
        # It is at work, with most replicas before it.
        place = f"{base}/api/simulations/{answer.json()['id']}"
        job, patience = answer.json(), time.monotonic() + 60
        while not job["done"] and time.monotonic() < patience:
            time.sleep(0.05)
            job = requests.get(place, timeout=30).json()
        assert job["status"] == "running"
        assert job["done"] > 0
    finally:
        process.kill()
        process.communicate()
    deadline = time.monotonic() + 5
    while (left := members(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left == []


def members(session: int) -> list[str]:
    """Processes of a session that still run."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append(entry.name)
    return found


def test_sizes_of_requests_are_capped(client: Client) -> None:
    assert client.get("/api/curves", params={"teacher": "x" * 5000}).status_code == 414
    big = json.dumps({"state": {}, "more": "x" * 20_000})
    headers = token(client) | {"content-type": "application/json"}
    assert client.post("/api/simulations", data=big, headers=headers).status_code == 413

    def stream() -> Iterator[bytes]:
        for _ in range(40):
            yield b"x" * 1000

    # A body that does not say how long it is.
    try:
        code = client.post("/api/simulations", data=stream(), headers=headers).status_code
    except requests.ConnectionError:
        code = 400
    assert code in (400, 411, 413)


def test_rates_are_capped() -> None:
    guard = wall.Wall(None, ["localhost"])
    allowed = [guard._allowed("someone") for _ in range(int(wall.BURST) + 50)]
    assert all(allowed[: int(wall.BURST)])
    assert not all(allowed)
    assert guard._allowed("another")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.script = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        if self.found and self.found[-1][0] in ("script", "style"):
            self.script += data.strip()


def test_the_page_is_strict_and_asks_nobody_else(client: Client) -> None:
    answer = client.get("/")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    tags = _Tags()
    tags.feed(answer.text)
    assert not tags.script
    ids = [attributes["id"] for _, attributes in tags.found if attributes.get("id")]
    assert len(ids) == len(set(ids))
    for tag, attributes in tags.found:
        assert not any(name == "style" or name.startswith("on") for name in attributes), (
            f"inline code in {tag}"
        )
        for name in ("src", "href"):
            link = attributes.get(name) or "#"
            assert link.startswith(("#", "page/")), link
            if link.startswith("page/"):
                assert client.get(f"/{link}").status_code == 200
        if tag == "label" and attributes.get("for"):
            assert attributes["for"] in ids
    for file in PAGE.iterdir():
        outside = set(re.findall(r"https?://[^\s\"'`]+", file.read_text())) - {"http://www.w3.org/2000/svg"}
        assert not outside
    assert client.get("/page/%2e%2e%2fapp.py").status_code == 404
    assert client.get("/page/nothing.js").status_code == 404


def test_no_mathematics_in_the_page() -> None:
    """Numbers come from the server: the page may place them, but not compute logarithms or powers."""
    code = "".join((PAGE / name).read_text() for name in pages.SCRIPTS)
    used = set(re.findall(r"Math\.(\w+)", code))
    assert used <= {"min", "max", "round", "floor", "ceil", "abs"}


def test_symbols_are_explained_as_in_the_table() -> None:
    page, notation = (PAGE / "index.html").read_text(), (ROOT / "docs" / "notation.md").read_text()
    terms = dict(re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", page))
    assert set(re.findall(r'data-symbol="(\w+)"', page)) == set(terms)
    in_the_limit = {"z", "beta", "hermite"}
    for word in terms.keys() - in_the_limit:
        assert f"`{word}`" in notation, f"{word} is not in docs/notation.md"


@pytest.mark.parametrize("name", PRESETS)
def test_presets_can_be_computed(name: str) -> None:
    state = State(**PRESETS[name])
    frame = views.solve_frame(state.model_dump())
    found = views.solve_points(state.model_dump(), [None, 0.3], views.DRAFT)
    assert np.isfinite(found["test"]).all()
    assert frame["random_features"]["test"] == pytest.approx(found["test"][0], rel=2e-2)


def test_controls_are_made_of_the_declared_fields() -> None:
    offered = choices()
    assert [entry["name"] for entry in offered["fields"]] == [field.name for field in FIELDS]
    json.dumps(offered, allow_nan=False)
    for field in FIELDS:
        assert offered["defaults"][field.name] == field.start
        assert offered["help"][field.name] == field.help
        for value in field.choices or field.examples:
            assert getattr(State(**{field.name: value}), field.name) == value


def test_words_are_read_and_refused_as_elsewhere() -> None:
    assert State(inputs="levels( .3, 1.7 )").setting["inputs"] == "levels(0.3, 1.7)"
    with pytest.raises(ValueError, match=r"inputs must be one of isotropic, power"):
        State(inputs="flat")
    copies = [made(State(inputs="power(0.5)")) for made in (as_toml, as_python, as_command)]
    assert ['inputs = "power(0.5)"' in copies[0], "inputs='power(0.5)'" in copies[1]] == [True, True]
    assert "--inputs 'power(0.5)'" in copies[2]
    assert not any("inputs" in made(State()) for made in (as_toml, as_python, as_command))


def test_ladders_are_inside_the_limits() -> None:
    for name, values in ladders().items():
        assert values == sorted(set(values))
        for value in (values[0], values[-1]):
            State(**{name: value})


@pytest.mark.parametrize(
    "state",
    [
        State(),
        State(teacher="tanh(2*x)", n_samples=1e24, step_samples_per_sample=0.5, rows="sphere"),
        State(activation="0.5*x + relu(x)", readout="constant", initial_output="order_one", noise_std=0),
    ],
)
def test_the_same_thing_elsewhere(state: State) -> None:
    import click.testing

    from firststep.cli import app as cli
    from firststep.experiment import expand, parse

    (point, *_) = expand(parse(as_toml(state)))
    assert (point.problem, point.ridge) == (state.problem, state.ridge)
    assert point.sizes.n_samples == pytest.approx(state.sizes.n_samples, rel=1e-12)
    done = click.testing.CliRunner().invoke(cli.main, [*shlex.split(as_command(state))[1:], "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["rows"]
    scope: dict[str, Any] = {}
    exec(as_python(state), scope)
    assert scope["outcome"].test_error[0, 0] == pytest.approx(row["test_error"], rel=1e-9)
    expected = views.solve_points(state.model_dump(), [state.step_exponent], views.EXACT)
    assert expected["test"][0] == pytest.approx(row["test_error"], rel=1e-5)


def wait_for(client: Client, identity: str, seconds: float = 60) -> dict[str, Any]:
    started = time.monotonic()
    while True:
        job: dict[str, Any] = client.get(f"/api/simulations/{identity}").json()
        if job["status"] not in ("running", "cancelling"):
            return job
        assert time.monotonic() - started < seconds, job
        time.sleep(0.1)


def test_simulate_and_reuse(client: Client, store: str) -> None:
    headers = token(client)
    assert client.get("/api/simulated", params=SMALL).json() == {"points": None, "second": None}
    asked = {"state": SMALL, "replicas": 3}
    job = client.post("/api/simulations", json=asked, headers=headers)
    assert job.status_code == 201
    assert client.post("/api/simulations", json=asked, headers=headers).status_code == 409
    done = wait_for(client, job.json()["id"])
    assert done["status"] == "finished", done["reason"]
    assert done["points"]["replicas"] == 3
    assert {entry["of"] for entry in done["spectra"]} == {"features", "weights"}
    theory = client.get("/api/curves", params=SMALL).json()["errors"]["panels"]["train"]["unified"]
    for i, alpha in enumerate(done["points"]["exponents"]):
        mean, error = (done["points"]["train"][name][i] for name in ("mean", "stderr"))
        assert abs(mean - theory[exponents().index(alpha)]) < 6 * error + 0.1 * mean
    again = client.get("/api/simulated", params=SMALL | {"step_exponent": 0.4}).json()["points"]
    assert again["test"] == done["points"]["test"]
    from firststep.store import open_store

    with open_store(store, read_only=True) as kept:
        assert len({row["replica"] for row in kept.rows(source="simulation")}) == 3
    # Nothing is computed twice.
    count = Path(store).stat().st_size
    second = client.post("/api/simulations", json=asked, headers=headers).json()
    assert wait_for(client, second["id"])["points"] == done["points"]
    assert Path(store).stat().st_size == count


def test_a_simulation_can_be_cancelled(client: Client) -> None:
    headers = token(client)
    asked = {"state": SMALL | {"n_samples": 1000}, "replicas": 16}
    identity = client.post("/api/simulations", json=asked, headers=headers).json()["id"]
    time.sleep(0.3)
    assert client.delete(f"/api/simulations/{identity}", headers=headers).status_code == 200
    job = wait_for(client, identity)
    assert job["status"] == "cancelled"
    assert job["done"] < 16


@pytest.mark.parametrize(("n", "reason"), [(1e12, "do not fit into a computer"), (3e4, "GiB"), (6e3, "min")])
def test_a_simulation_that_would_not_fit_is_refused(client: Client, n: float, reason: str) -> None:
    asked = {"state": SMALL | {"n_samples": n}, "replicas": 32}
    answer = client.post("/api/simulations", json=asked, headers=token(client))
    assert answer.status_code == 422
    assert reason in answer.json()["detail"]
    # The page is told in an answer, so that its console stays empty.
    page = client.post("/api/simulations", json=asked, headers=token(client) | {"x-firststep-client": "page"})
    assert page.status_code == 200
    assert reason in page.json()["refusal"]
    with pytest.raises(RefusedError):
        check_budget(State(n_samples=n), 32)


def test_a_refused_simulation_asks_for_what_the_menu_has() -> None:
    asked = set()
    for n in (1500, 2000, 3000, 4000):
        try:
            check_budget(State(n_samples=n), 32)
        except RefusedError as refusal:
            asked |= {int(count) for count in re.findall(r"ask for (\d+) replicas", str(refusal))}
    menu = re.search(r'<select id="replicas".*?</select>', (PAGE / "index.html").read_text())
    assert menu
    assert asked
    assert asked <= {int(count) for count in re.findall(r"<option[^>]*>(\d+)", menu[0])}


def test_overtaken_requests_are_never_started() -> None:
    async def run() -> tuple[list[Any], int]:
        pool = Pool(1)
        pool.start()
        service = Service(pool)
        await pool.call(time.sleep, 0.0)

        async def ask(number: int) -> Any:
            async def work() -> Any:
                await pool.call(time.sleep, 0.2)
                return number

            try:
                return await service.newest("client", "view", work())
            except Overtaken:
                return None

        tasks = []
        for number in range(8):
            tasks.append(asyncio.create_task(ask(number)))
            await asyncio.sleep(0.005)
        answers = list(await asyncio.gather(*tasks))
        started = pool.started
        await pool.stop()
        return answers, started

    answers, started = asyncio.run(run())
    assert answers == [None] * 7 + [7]
    assert started <= 3, "the first, the last, and the one to warm up"


def test_what_somebody_waits_for_goes_before_what_is_computed_ahead() -> None:
    class Recorder:
        count, quiet = 1, 100.0

        def __init__(self) -> None:
            self.priorities: list[int] = []

        async def call(self, function: Any, *arguments: Any, priority: int = 1) -> Any:
            self.priorities.append(priority)
            if len(self.priorities) > 5:
                await asyncio.sleep(3600)
            return views.solve_spectrum(*arguments)

    async def run() -> tuple[list[int], list[int]]:
        pool, ahead = Recorder(), Recorder()
        service = Service(pool, None, ahead)  # type: ignore[arg-type]
        state = State(**SMALL)
        await service.spectrum_for(state, "weights", draft=True)
        await service.spectrum_for(state, "weights", draft=False)
        waited_for = pool.priorities + ahead.priorities
        ahead.priorities.clear()
        service.look_ahead("client", state)
        while len(ahead.priorities) < 5:
            await asyncio.sleep(0.01)
        await service.stop()
        return waited_for, ahead.priorities

    waited_for, computed_ahead = asyncio.run(run())
    assert len(waited_for) == 2
    assert max(waited_for) < min(computed_ahead)


def test_whoever_looks_at_a_spectrum_has_the_next_ones_computed_ahead(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []
    monkeypatch.setattr(
        client.app.state.service, "look_ahead", lambda who, state: asked.append((who, state.step_exponent))
    )
    for headers in ({}, {"x-firststep-client": "page"}):
        assert client.get("/api/spectrum/weights", params=SMALL, headers=headers).status_code == 200
    # Programs without a name ask for what they want.
    assert asked == [("page", SMALL["step_exponent"])]


def test_a_slow_or_deadly_computation_is_given_up() -> None:
    async def run() -> None:
        pool = Pool(1, time_limit=3.0)
        pool.start()
        assert await pool.call(divmod, 7, 2) == (3, 1)
        with pytest.raises(TooSlowError, match="the page allows"):
            await pool.call(time.sleep, 30.0)
        assert await pool.call(divmod, 7, 3) == (2, 1)
        with pytest.raises(LostError):
            await pool.call(os._exit, 3)
        assert await pool.call(divmod, 7, 4) == (1, 3)
        with pytest.raises(ZeroDivisionError):
            await pool.call(divmod, 1, 0)
        await pool.stop()

    asyncio.run(run())


def test_an_error_that_cannot_travel_keeps_its_words() -> None:
    lost = ConvergenceError("no solution", np.zeros(1), np.zeros(1))
    assert _sendable(lost) is lost
    error = RuntimeError("no solution")
    error.lock = threading.Lock()  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        pickle.loads(pickle.dumps(error))
    sent = _sendable(error)
    assert isinstance(sent, RuntimeError)
    assert str(pickle.loads(pickle.dumps(sent))) == "no solution"
    plain = ValueError("as it is")
    assert _sendable(plain) is plain


def test_a_cache_computes_once_and_forgets_the_oldest() -> None:
    async def run() -> list[str]:
        made = []
        cache = Cache(2)

        async def ask(key: str) -> str:
            async def make() -> str:
                await asyncio.sleep(0.01)
                made.append(key)
                return key.upper()

            return str(await cache.fetch(key, make))

        assert await asyncio.gather(*(ask("a") for _ in range(5))) == ["A"] * 5
        for key in ("b", "c", "b", "a"):
            await ask(key)
        return made

    assert asyncio.run(run()) == ["a", "b", "c", "a"]


class QuickPool(Pool):
    """Reads and checks like the real one, but computes nothing that takes long."""

    def __init__(self) -> None:
        super().__init__(1)

    def start(self) -> None:
        pass

    async def call(self, function: Any, *arguments: Any, priority: int = 1) -> Any:
        if function is not views.solve_points:
            if function is views.solve_spectrum:
                raise ConvergenceError("not in this test", np.zeros(1), np.zeros(1))
            return function(*arguments)
        state, at, _ = arguments
        assert State(**state).problem
        size = len(at)
        return {"train": [1.0] * size, "test": [2.0] * size, "learned": [[0.0] * 16] * size, "notes": []}


@pytest.mark.parametrize(
    ("pool", "examples"),
    [(QuickPool, 20), pytest.param(lambda: Pool(1, time_limit=5.0), 25, marks=pytest.mark.slow)],
)
def test_its_own_schema_finds_no_500(
    store: str, monkeypatch: pytest.MonkeyPatch, pool: Callable[[], Pool], examples: int
) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    app = server.create_app(store, pool=pool())

    def refuse(state: State, replicas: int) -> None:
        assert state.problem
        raise RefusedError("not in this test")

    monkeypatch.setattr(app.state.simulations, "start", refuse)
    monkeypatch.setattr(wall, "RATE", 1e9)
    seen = set()
    with running(app) as client:
        schema = schemathesis.openapi.from_url(f"{client.base}/api/openapi.json")
        for found in schema.get_all_operations():

            @settings(
                max_examples=examples,
                deadline=None,
                derandomize=True,
                suppress_health_check=list(HealthCheck),
            )
            @given(case=found.ok().as_strategy())
            def fuzz(case: Any) -> None:
                answer = case.call(headers={"x-firststep-token": app.state.token}, timeout=120)
                seen.add((case.operation.path, answer.status_code))
                # 503 is the stated answer to what takes too long.
                assert answer.status_code < 500 or answer.status_code == 503, answer.text

            fuzz()
    assert {("/api/curves", 422), ("/api/choices", 200)} <= seen
    assert all(code in (200, 400, 403, 404, 409, 422, 503) for _, code in seen), seen


@pytest.mark.slow
def test_the_static_version(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("firststep")
    done = subprocess.run(
        [program, "explore", "--export", str(tmp_path / "site"), "--size", "small", "--workers", "1"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "index.html written" in done.stderr
    text = (tmp_path / "site" / "index.html").read_text()
    assert 'content="static"' in text
    assert len(text) < 3e6
    packed = json.loads(re.search(r"window\.firststepData = (.*?);</script>", text)[1])  # type: ignore[index]
    parts = {name: json.loads(gzip.decompress(base64.b64decode(part))) for name, part in packed.items()}
    for p in range(len(parts["choices"]["presets"])):
        assert len(parts[f"curves-{p}-0-0"]["positions"]) == len(exponents())
        spectra = parts[f"spectra-features-{p}-0"]
        assert len(spectra["nearest"]) == len(exponents())
        # Refined, not those of a moving slider.
        assert not any(spectrum["draft"] for spectrum in spectra["spectra"])
        assert len(parts[f"network-{p}"]["readout"]) == 9
        assert parts[f"critical-{p}-0"]["critical"]
    # The second step, with its spectra, for the preset that has one.
    assert not any(name.startswith("second-0") for name in parts)
    second = parts["second-2-0"]
    assert [len(second["nearest"]), len(second["steps"])] == [len(exponents()), 2]
    assert second["steps"][1][0]["state"]["step_exponent"] == 0.5
    both = parts["both-features-2-0"]
    assert both["spectra"][1][2]["steps"] == 2
    assert both["spectra"][1][2]["state"]["next_step_exponent"] == 0.5
    assert [both["nearest_next"][0], both["nearest_next"][-1]] == [0, 2]


def test_the_page_is_one_script_without_names_that_meet() -> None:
    code = bundle()
    assert not re.search(r"^(import|export) ", code, re.MULTILINE)
    named = re.findall(r"^(?:async )?(?:const|let|function|class) (\w+)", code, re.MULTILINE)
    assert len(named) > 100
    assert len(named) == len(set(named))


def test_answers_are_not_held_back_by_the_system() -> None:
    async def nodelay() -> int:
        seen: asyncio.Queue[int] = asyncio.Queue()

        async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            raw = writer.get_extra_info("socket")
            seen.put_nowait(raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = server._listener("127.0.0.1", 0)
        async with await asyncio.start_server(answer, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            found = await seen.get()
            writer.close()
            await writer.wait_closed()
        return found

    assert asyncio.run(nodelay())


def test_the_network_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    import click.testing

    from firststep.cli.explore import explore

    calls = []
    monkeypatch.setattr(server, "serve", lambda *args, **options: calls.append((args, options)))
    quiet = click.testing.CliRunner().invoke(explore, ["--no-open"])
    assert (quiet.exit_code, "Warning" in quiet.output) == (0, False)
    loud = click.testing.CliRunner().invoke(explore, ["--no-open", "--host", "0.0.0.0"])
    assert "open to everyone" in loud.output
    assert calls[0][0][0] == "127.0.0.1"


def test_what_takes_too_long_is_a_status_for_programs_and_an_answer_for_the_page() -> None:
    """A browser writes every status above 400 into its console, as if something were broken."""
    from firststep.explorer import app
    from firststep.explorer.pool import TooSlowError
    from firststep.explorer.service import Service

    async def ask(error: Exception, client: str) -> tuple[int, dict[str, Any], str | None]:
        async def work() -> Any:
            raise error

        answer = await app._answer(Service(None), client, "curves", work)  # type: ignore[arg-type]
        return answer.status_code, json.loads(bytes(answer.body)), answer.headers.get("retry-after")

    for error, words in ((TooSlowError("took longer"), "took longer"), (MemoryError(), "memory")):
        status, told, retry = asyncio.run(ask(error, ""))
        assert (status, retry) == (503, "1")
        assert words in told["detail"]
        status, told, _ = asyncio.run(ask(error, "page"))
        assert (status, told["status"]) == (200, 503)
        assert words in told["refusal"]
