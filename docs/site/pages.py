"""Pages of the site that are made from other files of the project (hooks of mkdocs).

README.md is the first page, the other documents at the top of the project are pages too, and each
public package has a page of its API. Links in all pages are those that work in the repository; they
are rewritten for the site.
"""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent.parent
TOP = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
API = {
    "pjrt_bridge": "pjrt_bridge",
    "torch_interop": "pjrt_bridge.torch_interop",
    "tf_interop": "pjrt_bridge.tf_interop",
    "jax_interop": "pjrt_bridge.jax_interop",
    "runtime": "pjrt_bridge.runtime",
    "registry": "pjrt_bridge.registry",
    "extensions": "pjrt_bridge.extensions",
    "stablehlo": "pjrt_bridge.stablehlo",
    "errors": "pjrt_bridge.errors",
}

_LINK = re.compile(r"\]\((?!https?:|#)(?P<path>[^)#\s]+)(?P<anchor>#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for source, target in TOP.items():
        if (ROOT / source).is_file():
            text = (ROOT / source).read_text(encoding="utf-8")
            files.append(File.generated(config, target, content=text))
    for name, module in API.items():
        files.append(File.generated(config, f"api/{name}.md", content=_api_page(module)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links from where files are in the repository to where their pages are."""
    if page.file.src_uri.startswith("api/"):
        return markdown
    folder = Path(".") if page.file.src_uri in TOP.values() else Path("docs")

    def rewritten(match: re.Match[str]) -> str:
        path = Path(_normal(folder / match["path"]))
        anchor = match["anchor"] or ""
        if str(path) in TOP:
            return f"]({TOP[str(path)]}{anchor})"
        if path.parts[0] == "docs":
            return f"]({path.relative_to('docs')}{anchor})"
        return f"]({config.repo_url}/blob/main/{path}{anchor})"

    return _LINK.sub(rewritten, markdown)


def _normal(path: Path) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        else:
            parts.append(part)
    return "/".join(parts)


def _api_page(module: str) -> str:
    """A page with a module's docstring and the public names that no other page has."""
    names = getattr(importlib.import_module(module), "__all__", None)
    lines = [f"# {module}", "", f"::: {module}", "    options:", "      show_root_heading: false"]
    lines += ["      show_root_toc_entry: false"]
    if names is None:
        return "\n".join(lines)
    lines += ["      members: false", ""]
    for name in names:
        elsewhere = _page_elsewhere(module, name)
        if elsewhere is None:
            lines += [f"::: {module}.{name}", ""]
        else:
            lines += [f"- `{module}.{name}`: see [{elsewhere}]({elsewhere}.md)"]
    return "\n".join(lines)


def _page_elsewhere(module: str, name: str) -> str | None:
    """The page of a published module, or of a package that publishes the same object too."""
    value = getattr(importlib.import_module(module), name)
    if inspect.ismodule(value):
        return value.__name__.removeprefix("pjrt_bridge.")
    for page, other in API.items():
        if other != module and other.startswith(f"{module}."):
            published = importlib.import_module(other)
            if name in getattr(published, "__all__", ()) and getattr(published, name) is value:
                return page
    return None
