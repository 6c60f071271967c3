"""A static site of executed notebooks: an index, a page each, the pages of ``docs/``, and the package's API.

It opens from disk and requests no host: formulas are MathML, and style and figures lie beside the pages.
``python tools/site.py [NOTEBOOKS [OUTPUT]]``, as ``make html`` runs it.
"""

import re
import sys
from pathlib import Path
from typing import Any

import latex2mathml.converter
import nbformat
import pdoc
from jinja2 import pass_context
from nbconvert.exporters.html import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.writers.files import FilesWriter
from pdoc import render, render_helpers

import estimator_utils
from estimator_utils.reporting.runner import NotebookError

REPOSITORY = Path(__file__).resolve().parents[1]
TEMPLATES = Path(__file__).with_name("site_templates")
# An array as pdoc writes it, plain or highlighted: numpy.ndarray[tuple[...], numpy.dtype[numpy.float64]]
_ARRAY = re.compile(r"numpy\W*(?:<[^>]*>\W*)*ndarray.*?(\w+)(?:</span><span class=\"p\">)?\]\]")


class _Renderer(IPythonRenderer):
    """Markdown to HTML, with formulas as MathML and links from notebook to notebook as links between pages."""

    def block_math(self, body: str) -> str:
        return self.inline_math(body, display="block")

    def inline_math(self, body: str, display: str = "inline") -> str:
        math = latex2mathml.converter.convert(body.strip(), display=display)
        # Names of functions, such as log: without being operators they would have no space around them.
        return re.sub("<mi>([a-z]{2,})</mi>", r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', math)

    def link(self, text: str, url: str, title: str | None = None) -> str:
        page = url if "://" in url else re.sub(r"\.ipynb(?=#|$)", ".html", url)
        return str(super().link(text, page, title))


def markdown_to_html(source: str) -> str:
    """Return Markdown as HTML; a formula, in dollars, becomes ``<math>``."""
    return str(MarkdownWithMath(renderer=_Renderer(escape=False)).render(source))


def write_site(notebooks: Path, output: Path, package: str = "estimator_utils") -> Path:
    """Write the site of a folder of executed notebooks.

    Parameters
    ----------
    notebooks : Path
        Folder of ``*.ipynb``: the committed ones, or those that ``make reproduce`` wrote.
    output : Path
        Folder of the site; files of the same name are replaced.
    package : str
        Package whose API is documented below ``api/``.

    Returns
    -------
    Path
        The index page.

    Raises
    ------
    NotebookError
        Where the folder holds no notebook.
    """
    if not (paths := sorted(notebooks.glob("*.ipynb"))):
        raise NotebookError(f"no notebooks in {notebooks}: expected a folder of executed *.ipynb")
    links, entries = [f"[API of `{package}`](api/index.html)"], []
    for path in sorted((REPOSITORY / "docs").glob("*.md")):
        page = _page_of(path.read_text(encoding="utf-8"))
        _write_page(page, path.stem, output)
        links.append(f"[{_title(page)}]({path.stem}.html)")
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        figures = re.findall("<img[^>]*>", _write_page(notebook, path.stem, output))
        first = f'<div class="first-figure">{"".join(figures[:1])}</div>'
        entries += [f"## [{_title(notebook)}]({path.stem}.html)", first, *_summary(notebook)]
    head = ["# Training FLOP from outside", str(estimator_utils.__doc__), " · ".join(links)]
    _write_page(_page_of("\n\n".join(head + entries)), "index", output)
    _write_api(package, output / "api")
    return output / "index.html"


def _page_of(markdown: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(markdown, id="text")])


def _write_page(notebook: Any, name: str, output: Path) -> str:
    """Write a notebook as a page, its figures as files of their own; return the page's HTML."""
    exporter = HTMLExporter(
        template_name="notebook",
        extra_template_basedirs=[str(TEMPLATES)],
        filters={"markdown2html": markdown_to_html},
        preprocessors=["nbconvert.preprocessors.ExtractOutputPreprocessor"],
    )
    names = {"unique_key": name, "output_files_dir": f"{name}_files", "title": _title(notebook)}
    html, resources = exporter.from_notebook_node(notebook, names)
    FilesWriter(build_directory=str(output)).write(html, resources, notebook_name=name)
    return html


def _title(notebook: Any) -> str:
    return str(notebook.cells[0].source.partition("\n")[0].lstrip("# "))


def _summary(notebook: Any) -> list[str]:
    """Return a notebook's question, and the first text that its section "Result" puts out, where it has them."""
    headings = [cell.source.partition("\n")[0] for cell in notebook.cells]
    result = notebook.cells[headings.index("## Result") :] if "## Result" in headings else []
    outputs = [out.get("data", {}) for cell in result for out in cell.get("outputs", [])]
    texts = [data["text/markdown"] for data in outputs if "text/markdown" in data]
    return [*notebook.cells[0].source.split("\n\n")[1:2], *texts[:1]]


def _write_api(package: str, output: Path) -> None:
    @pass_context
    def linkify(context: Any, code: str, **names: Any) -> str:
        return render_helpers.linkify(context, _ARRAY.sub(r"\1 array", code), **names)

    @pass_context
    def link(context: Any, spec: tuple[str, str], text: str | None = None) -> str:
        is_private = spec[1].startswith("_")  # such as a base class: it is named, but not documented
        return text or spec[1] if is_private else render_helpers.link(context, spec, text)

    render.configure(docformat="numpy", template_directory=TEMPLATES)
    render.env.filters |= {"linkify": linkify, "link": link}
    pdoc.pdoc(package, output_directory=output)


if __name__ == "__main__":
    defaults = (REPOSITORY / "notebooks", REPOSITORY / "build" / "site")
    given = tuple(map(Path, sys.argv[1:]))
    print(write_site(*given, *defaults[len(given) :]))
