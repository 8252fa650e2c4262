"""The files of the page: texts, scripts and colours."""

from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from firststep import __version__

KINDS = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
# The page's scripts, each after those that it imports.
SCRIPTS = (
    "model.js",
    "charts.js",
    "sources.js",
    "drawings.js",
    "network.js",
    "second.js",
    "inputs.js",
    "follow.js",
    "controls.js",
    "save.js",
    "lessons.js",
    "app.js",
)
PAGE_FILES = (*SCRIPTS, "style.css", "icon.svg", "d3.js")


def palette() -> str:
    """The colours of all figures as a style sheet, light and dark."""
    from firststep.figures import PALETTES

    def block(name: str) -> str:
        return " ".join(f"--{role.replace('_', '-')}: {value};" for role, value in PALETTES[name].items())

    return (
        f":root {{ {block('light')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root:not([data-theme=light]) {{ {block('dark')} }} }}\n"
        f":root[data-theme=dark] {{ {block('dark')} }}\n"
    )


def page_text(name: str, token: str) -> str:
    """A file of the page, with the token that lets it start simulations."""
    if name == "d3.js":
        return d3()
    text = (files("firststep.explorer") / "page" / name).read_text(encoding="utf-8")
    return text.replace("{{token}}", token).replace("{{version}}", __version__)


@lru_cache(maxsize=1)
def d3() -> str:
    """The D3 library as the package mpld3 ships it."""
    # The package itself is not imported: it would import matplotlib.
    found = find_spec("mpld3")
    places = found.submodule_search_locations if found is not None else None
    if not places:
        raise ImportError("the explorer's charts are drawn by D3, which mpld3 ships: install firststep[web]")
    return (Path(places[0]) / "js" / "d3.v5.min.js").read_text(encoding="utf-8")
