"""Fold the prose of the pages at 100 characters: a change of one word is then a change of one line.

Run as ``python docs/_ext/fold.py PAGE...``. Tables, code, headings and what cannot be broken stay as they are.
"""

import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

WIDTH = 100

# What must stay on one line: code, formulas, roles, links, citations, footnotes and the HTML of a picture.
_WHOLE = re.compile(
    r"(?:\{[\w:]+\})?`+[^`]*`+|(?<![\\$])\$[^$]+\$|!?\[[^\]]*\]\([^)]*\)(?:\{[^}]*\})?|\[[^\]]*\]|<[^<>]*>"
)
_MARKER = re.compile(r"(?:[-+*>#|=:]|\d+[.)]|\$\$|```|:::|~~~)")
_ITEM = re.compile(r"(\s*(?:[-*+]|\d+[.)])\s+|\s*>\s+|\s*)(.*)")


def _words(text: str) -> list[str]:
    """Pieces between which a line may end."""
    hidden: list[str] = []

    def hide(found: re.Match[str]) -> str:
        hidden.append(found[0])
        return f"\0{len(hidden) - 1}\0"

    words = _WHOLE.sub(hide, text).split()
    shown = [re.sub(r"\0(\d+)\0", lambda found: hidden[int(found[1])], word) for word in words]
    pieces: list[str] = []
    for word in shown:
        # A line that begins with such a word would be a list, a heading or a table.
        if pieces and (_MARKER.match(word) or pieces[-1].endswith("\\")):
            pieces[-1] += " " + word
        else:
            pieces.append(word)
    return pieces


def _folded(lines: list[str]) -> Iterator[str]:
    """One paragraph or list item, folded; ``lines`` as they are if none is too long."""
    if all(len(line) <= WIDTH for line in lines):
        yield from lines
        return
    found = _ITEM.fullmatch(lines[0])
    assert found
    first, rest = found[1], re.sub(r"[^>\s]", " ", found[1])
    line = first
    for word in _words(" ".join([found[2], *(part.strip().removeprefix("> ") for part in lines[1:])])):
        if len(line) + len(word) >= WIDTH and line.strip() not in ("", first.strip()):
            yield line.rstrip()
            line = rest
        line += word + " "
    yield line.rstrip()


def _formula(lines: list[str]) -> Iterator[str]:
    """The lines of a displayed formula; a long one ends where the eye pauses: at a wide space, or before a sign."""
    for line in lines:
        for pause in (
            r"(?<=\\qquad) ",
            r"(?<=\\quad) ",
            r" (?=[=<>] |\\(?:approx|to)\b)",
            r" (?=[-+] )",
            r"(?<!\\) ",
        ):
            pieces = re.split(pause, line)
            if len(line) <= WIDTH or max(map(len, pieces)) <= WIDTH:
                break
        short = ""
        for piece in pieces if len(line) > WIDTH else [line]:
            if short and len(short) + len(piece) >= WIDTH:
                yield short
                short = ""
            short = f"{short} {piece}" if short else piece
        yield short


def _blocks(lines: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """The lines of a page in blocks, each with its kind: prose, formula or other."""
    fence, block = "", list[str]()
    for line in lines:
        mark = line.lstrip()
        begin = re.match(r"`{3,}|:{3,}|~{3,}|\$\$", mark)
        if fence:
            if mark.startswith(fence) and (fence == "$$" or not mark.strip(fence[0])):
                yield from (("formula" if fence == "$$" else "other", block), ("other", [line]))
                fence, block = "", []
            else:
                block.append(line)
        elif begin and not (begin[0] == "$$" and mark.count("$$") > 1):
            yield from (("prose", block), ("other", [line]))
            fence, block = begin[0], []
        elif (
            not mark
            or (not block and line.startswith("    "))
            or re.match(r"[#|<]|\([\w-]+\)=|\[[^\]]+\]:|:\w+:|---", mark)
        ):
            yield from (("prose", block), ("other", [line]))
            block = []
        elif re.match(r"(?:[-*+]|\d+[.)])\s", mark):
            yield ("prose", block)
            block = [line]
        else:
            block.append(line)
    yield ("prose", block)


_FOLD = {"prose": _folded, "formula": _formula}


def fold(text: str) -> str:
    """The page with its prose folded."""
    lines: list[str] = []
    for kind, block in _blocks(text.splitlines()):
        lines.extend(_FOLD[kind](block) if kind in _FOLD and block else block)
    return "\n".join(lines) + "\n"


def long_lines(text: str) -> list[str]:
    """Lines of prose and formulas that are too long and could be broken."""
    return [
        line
        for kind, block in _blocks(text.splitlines())
        if kind in _FOLD
        for line in block
        if len(line) > WIDTH and len(list(_FOLD[kind]([line]))) > 1
    ]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        page = Path(name)
        before = page.read_text(encoding="utf-8")
        after = fold(before)
        if before.split() != after.split():
            sys.exit(f"{name}: folding would change words; fold it by hand")
        if after != before:
            page.write_text(after, encoding="utf-8")
            sys.stdout.write(f"folded {name}\n")
