"""What the site has that the folder has not: the README as first page, and links that stay inside."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
_UPWARDS = re.compile(r"\[([^\]]+)\]\(((?:\.\./)+[^)#]*)[^)]*\)")
_OUT_OF_README = re.compile(r"\[([^\]]+)\]\((?!docs/|https?:|#)[^)]*\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the README as `index.md`."""
    text = _OUT_OF_README.sub(r"\1", (ROOT / "README.md").read_text()).replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Return *markdown* without links to files of the repository, which the site does not have: their text stays."""

    def kept(found: re.Match[str]) -> str:
        target = (ROOT / "docs" / page.file.src_uri).parent / found[2]
        return found[0] if target.resolve().is_relative_to(ROOT / "docs") else found[1]

    return _UPWARDS.sub(kept, markdown)
