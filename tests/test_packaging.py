"""What a stranger meets first: version, metadata, README, references; written once or checked to agree."""

import ast
import importlib.util
import itertools
import re
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
from threadpoolctl import threadpool_info

import firststep

ROOT = Path(__file__).parent.parent


def text(path: str) -> str:
    return (ROOT / path).read_text()


def first(pattern: str, content: str) -> str:
    found = re.search(pattern, content, re.MULTILINE)
    assert found, f"nothing like {pattern} found"
    return found[1]


def module_at(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_version_is_the_same_everywhere() -> None:
    assert "version" in tomllib.loads(text("pyproject.toml"))["project"]["dynamic"]
    assert version("firststep") == firststep.__version__
    assert first(r"^version: (\S+)$", text("CITATION.cff")) == firststep.__version__
    assert first(r"^## (\d\S*)", text("CHANGELOG.md")) == firststep.__version__


@pytest.mark.parametrize("command", [["firststep"], ["python", "-m", "firststep"]])
def test_command_says_its_version(command: list[str]) -> None:
    program = Path(sys.executable).with_name(command[0])
    done = subprocess.run([program, *command[1:], "--version"], capture_output=True, text=True, check=True)
    assert re.fullmatch(rf"firststep\W.*{re.escape(firststep.__version__)}\n", done.stdout)


def test_public_names_are_listed_once_for_people_tools_and_readers() -> None:
    tree = ast.parse(Path(firststep.__file__).read_text())
    for_type_checkers = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname
    }
    assert for_type_checkers == set(firststep.__all__), "the two lists in firststep/__init__.py differ"
    listed = re.findall(r"^   (\w+)$", text("docs/api/index.md"), re.MULTILINE)
    assert listed == firststep.__all__, "docs/api/index.md does not list the public names in their order"
    assert set(firststep.__all__) <= set(dir(firststep))


def test_every_module_has_its_page() -> None:
    source = Path(firststep.__file__).parent
    modules = {".".join(file.relative_to(source).with_suffix("").parts) for file in source.rglob("*.py")}
    # A module named like a public function has that function's page, the command line --help, the explorer a page
    # on what it shows; a folder that lists its names has one page for all its files.
    elsewhere = {
        name for name in modules if name.endswith("__") or name.partition(".")[0] in firststep.__all__
    }
    elsewhere |= {name for name in modules if name.startswith(("cli", "explorer."))}
    folders = {
        file.parent.name
        for file in source.rglob("*/__init__.py")
        if "__all__" in file.read_text() and file.parent != source
    }
    inside = {name for name in modules if name.partition(".")[0] in folders}
    listed = set(re.findall(r"^   firststep\.([\w.]+)$", text("docs/api/modules.md"), re.MULTILINE))
    assert listed == (modules - elsewhere - inside) | folders, (
        "docs/api/modules.md does not list the modules there are"
    )


def test_public_names_exist_and_are_not_modules() -> None:
    for name in firststep.__all__:
        assert not isinstance(getattr(firststep, name), ModuleType)
    with pytest.raises(AttributeError, match="nonsense"):
        firststep.nonsense  # noqa: B018


def test_a_function_outlives_the_import_of_its_module() -> None:
    modules = "import firststep.simulate, firststep.compare"
    functions = "from firststep import compare, simulate; assert callable(compare) and callable(simulate)"
    subprocess.run([sys.executable, "-c", f"{modules}; {functions}"], check=True)


def run_commands() -> set[str]:
    """Commands that ./run dispatches."""
    known = first(r"^([a-z |]+)\) setup ;;$", text("run"))
    return {"help", *known.split(" | ")}


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/quickstart.md", ".ci/run"])
def test_commands_in_the_pages_exist(page: str) -> None:
    used = set(re.findall(r"\./run ([a-z]+)", text(page)))
    assert used, f"{page} names no ./run command"
    assert used <= run_commands()


def test_run_helps_without_an_environment(tmp_path: Path) -> None:
    (tmp_path / "run").write_text(text("run"))
    done = subprocess.run(["sh", "run", "help"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert set(re.findall(r"^\./run ([a-z]+)", done.stdout, re.MULTILINE)) >= run_commands() - {
        "help",
        "python",
    }
    refused = subprocess.run(["sh", "run", "nonsense"], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert "no command 'nonsense'" in refused.stderr


def test_constraints_are_plain() -> None:
    lines = text("constraints.txt").splitlines()
    assert lines
    for line in lines:
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9_.+!-]+", line), f"not a plain name==version: {line}"
    assert not {"uv", "firststep"} & {line.partition("==")[0] for line in lines}


def test_dependencies_have_no_upper_pins() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    everything = [project["dependencies"], *project["optional-dependencies"].values()]
    for requirement in itertools.chain(*everything):
        assert not set(requirement) & set("<~!"), requirement
        assert "==" not in requirement


def test_readme_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", text("README.md"), re.DOTALL)
    assert len(code.splitlines()) <= 15
    exec(compile(code, "README.md", "exec"), {})
    assert capsys.readouterr().out


def test_every_quantity_is_in_the_table_of_symbols() -> None:
    problem, sizes = firststep.Problem("relu", "h1 + h2/sqrt(2)"), firststep.Sizes(60, 30, 40)
    extras = ("spiked", "gaussian", "linear", "weights")
    found = set(firststep.simulate(problem, sizes, 1.0, replicas=2, workers=1, extras=extras).values)
    for theory in ("unified", "staircase", "random_features"):
        found |= set(firststep.predict(problem, sizes, 1.0, theory=theory, baselines=True).values)
    words = set(re.findall(r"`(\w+)`", text("docs/notation.md")))
    missing = {name for name in found if re.sub(r"\d+", "ℓ", name) not in words}
    assert not missing, f"docs/notation.md lacks {sorted(missing)}"


def docstrings(source: str) -> list[str]:
    """Every docstring of a module, its classes and its functions."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    return [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]


def test_every_cited_key_is_defined() -> None:
    keys = module_at("docs/_ext/citation_keys.py")
    known = keys.defined(text("docs/references.md"))
    assert {"Ba22", "Moniri24", "Cui24", "firststep"} <= known
    for file in sorted((ROOT / "src").rglob("*.py")):
        cited = keys.cited("\n".join(docstrings(file.read_text())))
        assert cited <= known, f"{file.name} cites {sorted(cited - known)}, not in docs/references.md"


def test_unknown_and_misspelt_keys_are_seen() -> None:
    keys = module_at("docs/_ext/citation_keys.py")
    assert keys.cited("[Moniri24, eq. 2; Ba22; AP20, p. 3] and\n[Nobody99]_") == {
        "Moniri24",
        "Ba22",
        "AP20",
        "Nobody99",
    }
    assert keys.cited("[firststep,\nunified] but not x[firststep_size]") == {"firststep"}
    assert keys.defined("(ref-ba22)=\n**[Ba22]** text\n\n(ref-ba2)=\n**[Cui24]** wrong label") == {"Ba22"}


def test_one_blas_thread_in_the_tests() -> None:
    import scipy.linalg  # noqa: F401 - loads SciPy's own BLAS beside NumPy's

    assert {pool["num_threads"] for pool in threadpool_info()} == {1}
