"""Pages on a telephone: what stands above a table can be read without scrolling the table."""

import shutil

import numpy as np
import pytest
from problems import finished_run

from dspt.evaluation import Evaluation
from dspt.evaluation.page import Part, write_page
from dspt.experiments import landscape
from dspt.experiments.report import make

playwright = pytest.importorskip(
    "playwright.sync_api", reason="NOT TESTED: pages in a browser need playwright (pip install 'dspt[dev]')"
)
CHROMIUM = shutil.which("chromium")
if CHROMIUM is None:
    pytest.skip("NOT TESTED: pages in a browser need chromium (apt install chromium)", allow_module_level=True)

# By how many pixels each table is wider than what is seen of it, and its caption's words.
EXCESS = """() => [...document.querySelectorAll('caption')].map(caption => {
  const words = document.createRange();
  words.selectNodeContents(caption);
  const [table, text, seen] = [caption.parentElement, words, caption.closest('.scroll')].map(
    one => one.getBoundingClientRect().right);
  return [table - seen, text - seen];
})"""


def evaluation(folder):
    names = tuple(f"a class whose name is long, {c}" for c in range(12))
    chances = np.random.default_rng(1).dirichlet(np.ones(12), 60)
    judged = Evaluation(names, np.arange(60) % 12, chances, tuple(map(str, range(60))))
    write_page(folder / "page.html", "A run", "A model", [Part("", judged, lambda row: None)], 0)


def report(folder):
    for noise in ("sym:0.4", "sym:0.6", "sym:0.8", "pair:0.4"):
        result = {"data": "caltech101", "noise": noise, "method": "dspt", "seed": 1, "accuracy": 80.0}
        finished_run(folder / "runs" / noise.replace(":", ""), result)
    make(folder / "runs", folder / "page.html")


def losses(folder):
    landscape.draw(folder / "page.html")


@pytest.mark.parametrize("write", [evaluation, report, losses])
def test_no_caption_is_cut_where_its_table_is_wider_than_the_page(write, tmp_path):
    write(tmp_path)
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"], timeout=120_000)
        page = browser.new_page(viewport={"width": 390, "height": 800})
        page.goto((tmp_path / "page.html").as_uri())
        found = page.evaluate(EXCESS)
        browser.close()
    assert max(table for table, _ in found) > 10
    assert max(text for _, text in found) <= 0
