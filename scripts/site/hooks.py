"""What the documentation site adds to the Markdown files in docs/.

* README.md, CHANGELOG.md, CONTRIBUTING.md, SECURITY.md and the examples become pages. Links to them
  from docs/ lead out of that folder, as they should on GitHub; here they are rewritten.
* `<!-- api: NAME -->` becomes the reference of that name, and a name in the first column of a table
  on the same page becomes a link to it. On GitHub the comment is invisible.
* Scripts for diagrams and search are copied from node_modules: no page loads a file from another
  machine.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
NODE_MODULES = Path(__file__).parent / "node_modules"
SCRIPTS = {
    "mermaid.js": NODE_MODULES / "@mermaid-js/tiny/dist/mermaid.tiny.js",
    "iframe-worker.js": NODE_MODULES / "iframe-worker/shim/index.js",
}
ROOT_PAGES = {
    "README.md": "overview.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
}
EXAMPLES = "examples.md"

LINK = re.compile(r"(?<=\]\()(?!\w+:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
API = re.compile(r"^<!-- api: (?P<name>[\w.]+) -->$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in ROOT_PAGES.items():
        text = rewrite_links((ROOT / name).read_text(), folder="", page=page)
        files.append(File.generated(config, page, content=text))
    files.append(File.generated(config, EXAMPLES, content=examples()))
    for name, script in SCRIPTS.items():
        # `make check` builds the site without Node.js; diagrams are then not drawn.
        if script.is_file():
            files.append(File.generated(config, name, abs_src_path=str(script)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    path = page.file.src_uri
    if path in (*ROOT_PAGES.values(), EXAMPLES):
        return markdown
    folder = posixpath.join("docs", posixpath.dirname(path))
    return add_reference(rewrite_links(markdown, folder, path))


def rewrite_links(markdown: str, folder: str, page: str) -> str:
    """Links between files of the project as links between pages of the site."""

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, link["path"]))
        if target.startswith("docs/"):
            target = target.removeprefix("docs/")
        elif target.startswith("examples"):
            target = EXAMPLES
        else:
            target = ROOT_PAGES.get(target, target)
        return posixpath.relpath(target, posixpath.dirname(page)) + (link["anchor"] or "")

    parts = []
    end = 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(rewritten, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(rewritten, markdown[end:])])


def add_reference(markdown: str) -> str:
    """The reference of each name that the page lists in a comment, and links to it."""
    for name in API.findall(markdown):
        short = re.escape(name.rpartition(".")[2])
        row = re.compile(rf"^\| `({short}(?:\([^`]*\))?)` \|", re.MULTILINE)
        markdown = row.sub(rf"| [`\1`][{name}] |", markdown)
    return API.sub(r"::: \g<name>", markdown)


def examples() -> str:
    """One page with every example."""
    parts = ["# Examples", "Each file in `examples/` runs as it is: `python examples/NAME.py`."]
    folder = ROOT / "examples"
    for path in sorted(folder.rglob("*.py"), key=lambda path: (len(path.parts), path)):
        parts += [f"## {path.relative_to(folder)}", f"```python\n{path.read_text().rstrip()}\n```"]
    return "\n\n".join(parts) + "\n"
