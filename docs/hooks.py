"""What mkdocs.yml cannot say of the site.

Its pages have the paths of the repository, so that a link holds on the code host and on the site. A file or folder that a page
links to becomes a page too, and so does the help of the commands.
"""

import itertools
import json
import posixpath
import re
from pathlib import Path

import typer
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel

from lottery import cli

ROOT = Path(__file__).parent.parent
TOP = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "zoo/README.md")  # the pages outside docs/
UNSEARCHED = "---\nsearch: {exclude: true}\n---\n"


class Source(File):
    """A file that is not Markdown, or a folder, as a page."""

    def is_documentation_page(self) -> bool:
        return True


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Name what is in docs/ by its path in the repository, and add the pages from elsewhere."""

    def add(kind: type[File], path: str, inclusion: InclusionLevel = InclusionLevel.UNDEFINED) -> File:
        file = kind(path, str(ROOT), config.site_dir, config.use_directory_urls, inclusion=inclusion)
        files.append(file)
        return file

    for file in [file for file in files if file.src_dir == config.docs_dir]:
        files.remove(file)
        add(File, f"docs/{file.src_uri}")
    for path in TOP:
        add(File, path)
    pages = list(files.documentation_pages())
    for page in pages:  # which grows: the page of a folder links to its files
        for path in _linked(page):
            if path not in files and (ROOT / path).exists():
                pages.append(add(Source, path, InclusionLevel.NOT_IN_NAV))
                pages[-1].content_string = _markdown(ROOT / path)
    files.append(File.generated(config, "docs/commands.md", content=_commands()))
    return files


def _linked(page: File) -> list[str]:
    """The paths in the repository to which a page links."""
    targets = re.findall(r"\]\(([^)#:\s]+)", page.content_string)
    return [posixpath.normpath(posixpath.join(posixpath.dirname(page.src_uri), target)) for target in targets]


def _markdown(path: Path) -> str:
    """The page of a file or folder."""
    if path.suffix == ".ipynb":
        return _notebook(path)
    title = f"# {path.relative_to(ROOT)}\n\n"
    if path.is_dir():
        return title + _listing(path)
    if path.parent.name == "pipelines":
        return title + _recipe(path.read_text())
    return UNSEARCHED + title + _code(path.read_text(), {".cff": "yaml"}.get(path.suffix, path.suffix[1:]))


def _code(text: str, language: str) -> str:
    return f"~~~~ {language}\n{text.strip()}\n~~~~\n"


def _notebook(path: Path) -> str:
    cells = [(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(path.read_text())["cells"]]
    return "\n\n".join(text if kind == "markdown" else _code(text, "python") for kind, text in cells)


def _listing(folder: Path) -> str:
    """The files of a folder, each with its first sentences."""
    lines = []
    for path in sorted(path for path in folder.iterdir() if path.is_file() and path.name[0] not in "._"):
        is_text = path.suffix in (".md", ".py", ".toml")
        start = re.match(r'(?:"""|# )(.+?)(?:"""|\n#?\n)', path.read_text(), re.DOTALL) if is_text else None
        about = ": " + start[1].replace("\n# ", "\n") if start else ""
        lines.append(f"- [{path.name}]({folder.name}/{path.name}){about}")
    return "\n".join(lines)


def _recipe(text: str) -> str:
    """A recipe with its first comment as text: what is indented there, commands and tables, as it is."""
    (comment,) = re.findall(r"\A(?:#.*\n)+", text)
    blocks = []
    for is_indented, lines in itertools.groupby(comment.splitlines(), lambda line: line.startswith("#  ")):
        block = "\n".join(line[1:].removeprefix(" ") for line in lines)
        blocks.append(_code(block, "text") if is_indented else re.sub(r"\b(docs|pipelines)/[\w./-]*\w", _link, block))
    return "\n\n".join([*blocks, _code(text.removeprefix(comment), "toml")])


def _link(match: re.Match[str]) -> str:
    """A link to a path that a recipe names."""
    path = match[0]
    if (ROOT / path / "README.md").exists():
        path += "/README.md"
    return f"[{match[0]}](../{path})"


def _commands() -> str:
    """The help of every command."""
    blocks, commands = ["# Commands"], list(typer.main.get_command(cli.app).commands.items())
    for name, command in commands:  # which grows by those of a group
        context = typer.Context(command, info_name=f"imp {name}", terminal_width=84, **cli.app.info.context_settings)
        blocks.append(f"## imp {name}\n\n{_code(command.get_help(context), 'text')}")
        commands += [(f"{name} {member}", of_group) for member, of_group in getattr(command, "commands", {}).items()]
    return "\n\n".join(blocks)
