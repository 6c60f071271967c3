"""The site opens from disk, asks no host, and leaves out no formula, no alt text and no link."""

from __future__ import annotations

import base64
import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import nbformat
import pytest
from bs4 import BeautifulSoup
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from estimator_utils.reporting.runner import NotebookError
from tools import site

ROOT = Path(__file__).resolve().parents[2]
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
ALT = 'Power steps from 0.7 W to <8.5 W> & back, "idle" [1].'
MISSING_ALT = "No description has been provided for this image"  # what nbconvert writes where there is none
FORMULA = re.compile(r"\$\$.+?\$\$|\$.+?\$", re.DOTALL)


@cache
def parsed(path: Path) -> BeautifulSoup:
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


@cache
def places(path: Path) -> set[str]:
    return {tag["id"] for tag in parsed(path).find_all(id=True)}


def references(page: BeautifulSoup, links: bool) -> list[str]:
    """Return what a page points at: the links that a reader may follow, or all that it loads by itself."""
    if links:
        return [tag["href"] for tag in page.select("a[href]")]
    urls = [tag[name] for tag in page.find_all() for name in ("src", "srcset", "data", "poster") if tag.get(name)]
    urls += [tag["href"] for tag in page.find_all(href=True) if tag.name != "a"]
    styles = [tag.text for tag in page.select("style")] + [tag["style"] for tag in page.select("[style]")]
    for style in styles:
        urls += re.findall(r"""(?:url\(|@import)\s*["']?([^"')\s;]+)""", style)
    return [url for url in urls if not url.startswith("data:")]


def faults(folder: Path) -> list[str]:
    """Return what is wrong with the pages of a folder."""
    found = []
    for path in sorted(folder.rglob("*.html")):
        page, name = parsed(path), path.relative_to(folder)
        loaded = references(page, links=False)
        found += [f"{name}: loads {url}" for url in loaded if re.match(r"(?:\w+:)?//", url)]
        found += [f"{name}: no alt text" for image in page.select("img") if image.get("alt") in (None, "", MISSING_ALT)]
        for url in filter(lambda url: not re.match(r"(?:\w+:)?//", url), loaded + references(page, links=True)):
            target = path.parent / unquote(urlsplit(url).path) if urlsplit(url).path else path
            fragment = urlsplit(url).fragment  # a browser looks for it as it stands, then decoded
            if not target.is_file() or (fragment and not {fragment, unquote(fragment)} & places(target)):
                found.append(f"{name}: no such place: {url}")
        if path.parent == folder:  # code may hold dollars and backslashes
            text = "".join(
                s for s in page.find_all(string=True) if not s.find_parent(["pre", "code", "style", "script"])
            )
            found += [f"{name}: no formula: {raw}" for raw in re.findall(r"\$[^$]+\$|\\[A-Za-z]+", text)]
    return found


def formulas(notebook) -> int:
    """Count the formulas in a notebook's Markdown, cells and outputs."""
    outputs = [out.get("data", {}).get("text/markdown", "") for c in notebook.cells for out in c.get("outputs", [])]
    texts = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"] + outputs
    return sum(len(FORMULA.findall(text)) for text in texts)


def small_notebook():
    """Return a notebook as if it had been run, with one of everything."""
    picture = new_output("display_data", {"image/png": PIXEL}, metadata={"image/png": {"alt": ALT, "width": 525}})
    table = new_output("execute_result", {"text/html": "<table><tr><th>run</th></tr></table>"}, execution_count=1)
    says = [new_output("display_data", {"text/markdown": text}) for text in ("**4 % off** ($n = 3$).", "More.")]
    text = r"""# 01 · How far off?

**Question.** What does $E_\text{TB}$ cost?

| | |
|---|---|
| **reads** | `trial1` |
"""
    return new_notebook(
        cells=[
            new_markdown_cell(text),
            new_markdown_cell(
                "$$F = \\frac{E - P\\,t}{E_\\text{TFLOP}}$$\n\nSee [02](02_next.ipynb#Why) and $k_B T \\ln 2$."
            ),
            new_code_cell("x = '$5 and \\frac'", execution_count=1, outputs=[picture, table]),
            new_markdown_cell("## Result"),
            new_code_cell("say()", execution_count=2, outputs=says),
        ]
    )


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    """Return the site of two small notebooks."""
    folder = tmp_path_factory.mktemp("small")
    nbformat.write(small_notebook(), folder / "01_first.ipynb")
    nbformat.write(new_notebook(cells=[new_markdown_cell("# 02 · And then?\n\n## Why")]), folder / "02_next.ipynb")
    index = site.write_site(folder, folder / "site", package="json")
    assert index == folder / "site" / "index.html"
    return index.parent


def test_a_small_site_has_no_fault(small):
    assert {path.name for path in small.glob("0*.html")} == {"01_first.html", "02_next.html"}
    assert faults(small) == []


def test_alt_text_and_figure_reach_the_page_and_the_index(small):
    for name in ("01_first.html", "index.html"):
        (image,) = parsed(small / name).select("img")
        assert image["alt"] == ALT
        assert (small / image["src"]).read_bytes() == base64.b64decode(PIXEL)


def test_every_formula_becomes_mathml_and_code_keeps_its_dollars(small):
    page = parsed(small / "01_first.html")
    assert len(page.select("math")) == formulas(small_notebook()) == 4
    assert len(page.select('math[display="block"] mfrac')) == 1
    assert "$5 and \\frac" in page.select_one(".input_area").text


def test_the_name_of_a_function_stands_apart_and_keeps_its_index():
    math = BeautifulSoup(site.markdown_to_html(r"$T \ln 2$ and $\log_2 x$"), "html.parser")
    assert [operator.text for operator in math.select("mo[lspace]")] == ["ln", "log"]
    assert [child.name for child in math.select_one("msub").find_all(recursive=False)] == ["mo", "mn"]


def test_a_table_stays_a_table(small):
    cells = [cell.text for cell in parsed(small / "01_first.html").select("table td, table th")]
    assert cells == ["", "", "reads", "trial1", "run"]


def test_the_index_gives_title_question_and_headline_of_each_notebook(small):
    index = parsed(small / "index.html")
    assert [a["href"] for a in index.select("h2 a:not(.anchor-link)")] == ["01_first.html", "02_next.html"]
    for text in ("01 · How far off?", "Question. What does", "4 % off (", "02 · And then?"):
        assert text in index.text
    assert "More." not in index.text


def test_a_link_to_a_notebook_leads_to_its_page(small):
    assert "02_next.html#Why" in references(parsed(small / "01_first.html"), links=True)


def test_writing_again_gives_the_same_bytes(small, tmp_path):
    site.write_site(small.parent, tmp_path, package="json")
    pages = [path.relative_to(tmp_path) for path in tmp_path.rglob("*.html")]
    assert pages
    assert [name for name in pages if (tmp_path / name).read_bytes() != (small / name).read_bytes()] == []


def test_a_folder_without_notebooks_is_refused(tmp_path):
    with pytest.raises(NotebookError, match=r"no notebooks in .*: expected"):
        site.write_site(tmp_path, tmp_path / "site")
    assert not (tmp_path / "site").exists()


@pytest.mark.parametrize(
    ("html", "fault"),
    [
        ('<script src="https://cdn.example/x.js"></script>', "loads https://cdn.example/x.js"),
        ('<link href="//fonts.example/a.css" rel="stylesheet">', "loads //fonts.example/a.css"),
        ("<style>@import 'http://a.example/b.css';</style>", "loads http://a.example/b.css"),
        ('<p style="background: url(http://a.example/b.png)">', "loads http://a.example/b.png"),
        ("<img src='data:,'>", "no alt text"),
        (f"<img src='data:,' alt='{MISSING_ALT}'>", "no alt text"),
        ("<a href='gone.html'>", "no such place: gone.html"),
        ("<a href='#gone'>", "no such place: #gone"),
        ("<p>$x$", "no formula: $x$"),
        (r"<math><mi>\nonsense</mi></math>", r"no formula: \nonsense"),
    ],
)
def test_a_fault_is_seen(tmp_path, html, fault):
    (tmp_path / "page.html").write_text(html, encoding="utf-8")
    assert faults(tmp_path) == [f"page.html: {fault}"]


def test_an_array_is_named_briefly_in_signatures(tmp_path):
    site._write_api("estimator_utils.estimation.equations", tmp_path)
    page = parsed(next(tmp_path.rglob("equations.html")))
    signature = page.select_one("#leave_one_out_rms .signature").text
    assert "grid_w: float64 array" in signature
    assert "ndarray" not in signature
    parameters = page.select_one("#leave_one_out_rms .docstring")
    assert [item.text for item in parameters.select("h6")] == ["Parameters", "Returns"]
    assert "grid_w ((g,) W)" in parameters.text


# The whole site


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Return the site of all committed notebooks."""
    return site.write_site(ROOT / "notebooks", tmp_path_factory.mktemp("whole")).parent


@pytest.mark.slow
def test_the_whole_site_has_no_fault_and_all_formulas(whole):
    assert faults(whole) == []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        assert len(parsed(whole / f"{path.stem}.html").select("math")) == formulas(notebook), path.name


@pytest.mark.slow
def test_every_figure_of_the_notebooks_has_its_own_alt_text(whole):
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        outputs = [out for cell in nbformat.read(path, as_version=4).cells for out in cell.get("outputs", [])]
        alts = [out.metadata["image/png"]["alt"] for out in outputs if "image/png" in out.get("data", {})]
        assert [image["alt"] for image in parsed(whole / f"{path.stem}.html").select("img")] == alts, path.name


@pytest.mark.slow
def test_every_module_has_its_page(whole):
    modules = {path.relative_to(ROOT).with_suffix("") for path in (ROOT / "estimator_utils").rglob("*.py")}
    public = {path.parent if path.name == "__init__" else path for path in modules if path.name != "__main__"}
    assert {path.relative_to(whole / "api").with_suffix("") for path in whole.glob("api/*/**/*.html")} | {
        Path("estimator_utils")
    } == public


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs a browser: Chromium is not installed")
def test_a_browser_that_opens_all_pages_asks_no_host(whole, tmp_path):
    pages = sorted(whole.rglob("*.html"))
    (tmp_path / "loads.html").write_text('<script src="http://cdn.example/x.js"></script>', encoding="utf-8")
    assert requested(tmp_path, [*pages, tmp_path / "loads.html"]) == ["http://cdn.example/x.js"]


def requested(folder: Path, pages: list[Path]) -> list[str]:
    """Return what the pages ask hosts for when a browser opens them from disk; none of it leaves this machine."""
    frames, log = folder / "frames.html", folder / "log.json"
    frames.write_text("".join(f'<iframe src="{page.as_uri()}"></iframe>' for page in pages), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--host-resolver-rules=MAP * ~NOTFOUND"]
    options += [f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}"]
    options += ["--virtual-time-budget=10000", "--dump-dom"]
    subprocess.run([BROWSER, *options, frames.as_uri()], capture_output=True, check=True, timeout=300)
    found = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    # The browser's own errands, such as a look for updates, have no page as their origin.
    asked = [entry for entry in found if entry.get("initiator", "not an origin") != "not an origin"]
    return sorted({entry["url"] for entry in asked if not entry["url"].startswith(("file:", "data:"))})
