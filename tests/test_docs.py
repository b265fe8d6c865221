"""Documents are held to the code: commands and options that exist, links that lead somewhere, a page per family."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

REPOSITORY = Path(__file__).parent.parent
FAMILIES = sorted(init.parent.name for init in (REPOSITORY / "src/bridle").glob("*/__init__.py"))
SHELL = {"", "bash", "sh", "shell", "console"}
FENCE = re.compile(r"^ *(`{3,})([^\n`]*)\n(.*?)^ *\1 *$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
TEXT = {".py", ".jinja", ".json", ".jsonl", ".toml", ".yaml"}
LINK = re.compile(r"(?<!!)\[[^\]\n]*\]\(([^)\s]+)\)")
FOREIGN = [
    "/".join(("pypi.org", "simple")),
    ".".join(("registry", "npmjs")),
    "/".join(("file://", "opt")),
    "/".join(("", "work", "")),
    "shared/" + "reference",
]
"""Places that belong to some machine, not to the project. Joined here, so that this file does not hold them."""


@dataclass(frozen=True)
class Command:
    """A shell command that a document shows, as words; `where` is file:line."""

    where: str
    words: tuple[str, ...]


def documents(root: Path) -> list[Path]:
    found = [
        *root.glob("*.md"),
        *root.glob("docs/**/*.md"),
        *root.glob("examples/**/*.md"),
        *root.glob("tests/**/*.md"),
    ]
    return sorted(path for path in found if "node_modules" not in path.parts)


def commands(path: Path) -> Iterator[Command]:
    """Commands in shell blocks and, where they start with `make` or `bridle`, between single backquotes."""
    text = path.read_text()
    for block in FENCE.finditer(text):
        if block[2].strip().split(" ")[0] in SHELL:
            yield from split(path, text[: block.start(3)].count("\n") + 1, block[3])
    outside = FENCE.sub(lambda block: "\n" * block[0].count("\n"), text)
    for code in INLINE.finditer(outside):
        if re.match(r"(\.venv/bin/)?(make|bridle) ", code[1]):
            yield from split(path, outside[: code.start()].count("\n") + 1, code[1])


def split(path: Path, first_line: int, code: str) -> Iterator[Command]:
    joined = re.sub(r"\\\n", lambda found: "\x00", code)
    line = first_line
    for row in joined.split("\n"):
        for part in re.split(r"&&|\|\||[|;]", strip_comment(row.replace("\x00", " "))):
            words = [word for word in words_of(part) if not re.fullmatch(r"\$|[A-Z_]+=.*", word)]
            if words:
                yield Command(f"{path.name}:{line}", tuple(words))
        line += 1 + row.count("\x00")


def strip_comment(row: str) -> str:
    return re.sub(r"(^|\s)#.*$", "", row)


def words_of(part: str) -> list[str]:
    try:
        return shlex.split(part)
    except ValueError:  # an apostrophe of prose, or a quotation that a `|` was cut out of
        return part.split()


def targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):(?!=)", makefile, re.MULTILINE))


def wrong_make(command: Command, known: set[str]) -> list[str]:
    if command.words[0] != "make":
        return []
    asked = [word for word in command.words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    return [f"{command.where}: make {target}: no such target" for target in asked if target not in known]


def wrong_bridle(command: Command, main: click.Group) -> list[str]:
    """Walks the words down the tree of commands; the options given must be options of the command reached."""
    if command.words[0].rpartition("/")[2] != "bridle" or len(command.words) == 1:
        return []
    at: click.Command = main
    context = click.Context(main, info_name="bridle")
    allowed = {"--help", *options(main)}
    for word in command.words[1:]:
        if word.startswith("--"):
            if word.partition("=")[0] not in allowed:
                return [f"{command.where}: {context.command_path} has no option {word}"]
        elif isinstance(at, click.Group):
            found = at.get_command(context, word)
            if found is None:
                return [f"{command.where}: {context.command_path} {word}: no such command"]
            at, context = found, click.Context(found, info_name=word, parent=context)
            allowed |= options(found)
    return []


def options(command: click.Command) -> set[str]:
    return {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}


def broken_links(path: Path) -> list[str]:
    found = []
    for link in LINK.finditer(FENCE.sub("", path.read_text())):
        target = link[1].partition("#")[0]
        if target and "://" not in target and not target.startswith("mailto:") and not (path.parent / target).exists():
            found.append(f"{path.name}: {link[1]} leads nowhere")
    return found


# The project's own documents


@pytest.mark.parametrize("path", documents(REPOSITORY), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_make_target_that_a_document_names_exists(path: Path) -> None:
    known = targets((REPOSITORY / "Makefile").read_text())
    assert [line for command in commands(path) for line in wrong_make(command, known)] == []


@pytest.mark.parametrize("path", documents(REPOSITORY), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_bridle_command_that_a_document_shows_exists_with_its_options(path: Path) -> None:
    from bridle.cli.main import main

    assert [line for command in commands(path) for line in wrong_bridle(command, main)] == []


@pytest.mark.parametrize("path", documents(REPOSITORY), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    assert broken_links(path) == []


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_has_a_page(family: str) -> None:
    assert (REPOSITORY / f"docs/{family}.md").exists(), f"write docs/{family}.md"


def test_every_page_is_in_the_index() -> None:
    index = REPOSITORY / "docs/README.md"
    linked = {(index.parent / link[1].partition("#")[0]).resolve() for link in LINK.finditer(index.read_text())}
    pages = {path.resolve() for path in (REPOSITORY / "docs").rglob("*.md")} - {index.resolve()}
    assert sorted(str(path.relative_to(REPOSITORY)) for path in pages - linked) == []


def test_the_readme_shows_how_to_start() -> None:
    shown = {command.words[:2] for command in commands(REPOSITORY / "README.md")}
    assert {("make", "demo"), ("make", "test")} <= shown


def test_the_makefile_lists_every_target_it_offers() -> None:
    text = (REPOSITORY / "Makefile").read_text()
    described = set(re.findall(r"^([a-z-]+):.*## ", text, re.MULTILINE))
    assert {"demo", "test", "test-fast", "lint", "format", "docs", "bench"} <= described
    assert targets(text) - described == {"system"}, "a target without a ## line is not in `make help`"


def test_the_gate_runs_lint_tests_and_demo_in_this_order() -> None:
    gate = REPOSITORY / ".ci/run"
    assert gate.stat().st_mode & 0o111
    assert re.findall(r"^make (\S+)$", gate.read_text(), re.MULTILINE) == ["lint", "test", "demo"]


def test_the_concepts_name_every_kind_reason_and_echo_class_there_is() -> None:
    from bridle.messages import KINDS
    from bridle.samples.sample import REASONS
    from bridle.sessions.echo import SEVERITY

    text = (REPOSITORY / "docs/concepts.md").read_text()
    assert [name for name in (*KINDS, *REASONS, *SEVERITY) if f"`{name}`" not in text] == []


def test_contributing_stays_short() -> None:
    assert len((REPOSITORY / "CONTRIBUTING.md").read_text().splitlines()) <= 100


def test_the_licence_is_whole() -> None:
    text = (REPOSITORY / "LICENSE").read_text()
    assert "Apache License" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_nothing_in_the_project_names_somebodys_machine() -> None:
    files = [*documents(REPOSITORY), REPOSITORY / "Makefile", REPOSITORY / "pyproject.toml", REPOSITORY / ".ci/run"]
    for folder in ("src", "tests", "examples", "benchmarks"):
        files += [
            path for path in (REPOSITORY / folder).rglob("*") if path.suffix in {".py", ".jinja", ".yaml", ".toml"}
        ]
    assert [f"{path}: {word}" for path in files for word in FOREIGN if word in path.read_text()] == []


# The checks themselves


@click.group()
def planted() -> None: ...


@planted.group("serve")
def planted_serve() -> None: ...


@planted_serve.command("gateway")
@click.option("--port", type=int)
def planted_gateway(port: int) -> None: ...


@planted.command("run")
@click.argument("files", nargs=-1)
@click.option("--json/--lines")
def planted_run(files: tuple[str, ...], json: bool) -> None: ...


GOOD = """
Type `make test` or `bridle run FILE --json`, then:

```bash
make demo TORCH_INDEX=https://host/x   # make nonsense
FOO=1 .venv/bin/bridle run a.jsonl \\
    --json && make test
bridle serve gateway --port 1 | grep 'a|b'
```

```python
make = "bridle nothing"
```

Prose about make nothing and a bridle nobody wears. `Makefile` and `bridle`, `make`.
"""


def written(where: Path, text: str) -> Path:
    (where / "page.md").write_text(text)
    return where / "page.md"


def complaints(page: Path) -> list[str]:
    found = list(commands(page))
    known = targets("demo: setup\nnot-this := x\ntest:\n")
    return [line for command in found for line in [*wrong_make(command, known), *wrong_bridle(command, planted)]]


def test_a_page_whose_commands_exist_has_no_complaints(tmp_path: Path) -> None:
    page = written(tmp_path, GOOD)
    assert complaints(page) == []
    assert {command.words[:2] for command in commands(page)} >= {
        ("make", "test"),
        ("make", "demo"),
        ("bridle", "serve"),
        (".venv/bin/bridle", "run"),
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Type `make tset`.", "page.md:1: make tset: no such target"),
        ("```\nmake demo\nmake not-this\n```", "page.md:3: make not-this: no such target"),
        ("```\necho a \\\n  b\ntrue && make gone\n```", "page.md:4: make gone: no such target"),
        ("1. so:\n   ```bash\n   make gone\n   ```\n", "page.md:3: make gone: no such target"),
        ("`bridle fly`", "page.md:1: bridle fly: no such command"),
        ("\n`bridle serve sandbox`", "page.md:2: bridle serve sandbox: no such command"),
        ("`bridle run x --yaml`", "page.md:1: bridle run has no option --yaml"),
        ("```console\n$ .venv/bin/bridle run \\\n --port 1\n```", "page.md:2: bridle run has no option --port"),
        ("```\nbridle --loud run x\n```", "page.md:2: bridle has no option --loud"),
    ],
)
def test_a_command_that_does_not_exist_is_found(text: str, said: str, tmp_path: Path) -> None:
    assert complaints(written(tmp_path, text)) == [said]


def test_a_link_that_leads_nowhere_is_found(tmp_path: Path) -> None:
    text = "[a](page.md) [b](https://host/x) [c](#here) [d](page.md#there) [e](gone.md)\n```\n[f](gone2.md)\n```\n"
    assert broken_links(written(tmp_path, text)) == ["page.md: gone.md leads nowhere"]
