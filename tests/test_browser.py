"""The pages in a real browser: every chart is drawn, and nothing is complained of."""

import re
import shutil
import subprocess

import pytest

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(not BROWSER, reason="no Chromium")


def browse(page, tmp_path, *options):
    """The page's document once its scripts have run, and what they said on the console."""
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--enable-logging=stderr", "--virtual-time-budget=20000", *options, page.resolve().as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def assert_drawn(document, count):
    charts = document.split('<div class="chart')[1:]
    assert len(charts) == count
    for chart in charts:
        drawn = chart.split("</figure>")[0]
        assert "<svg" in drawn
        assert len(re.findall(r"<path|<rect", drawn)) > 5
        assert "NaN" not in drawn


@pytest.mark.parametrize("scheme", ["0", "1"], ids=["dark", "light"])
def test_every_chart_of_the_report_is_drawn_and_the_console_stays_empty(smoke, tmp_path, scheme):
    folder, _ = smoke

    document, console = browse(
        folder / "runs/smoke/report/index.html", tmp_path, "--dump-dom", f"--blink-settings=preferredColorScheme={scheme}"
    )

    assert console == []
    assert_drawn(document, 8)


def test_the_report_fits_on_printed_pages(smoke, tmp_path):
    folder, _ = smoke
    printed = tmp_path / "report.pdf"

    _, console = browse(folder / "runs/smoke/report/index.html", tmp_path, f"--print-to-pdf={printed}")

    assert console == []
    widths = {width for width, _ in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", printed.read_bytes())}
    assert widths == {b"612"}  # letter paper, and nothing wider


def test_on_paper_the_recipe_and_the_environment_are_open(smoke, tmp_path):
    folder, _ = smoke
    page = tmp_path / "printing.html"
    written, _, end = (folder / "runs/smoke/report/index.html").read_text().rpartition("</body>")
    page.write_text(f"{written}<script>dispatchEvent(new Event('beforeprint'))</script></body>{end}")

    document, console = browse(page, tmp_path, "--dump-dom")

    assert console == []
    assert re.findall(r'<details class="(\w+)" open="">', document) == ["contents", "recipe", "environment"]


def test_a_click_on_a_heading_sorts_its_table_by_numbers_and_another_click_turns_it_round(smoke, tmp_path):
    folder, _ = smoke
    page = tmp_path / "sorted.html"
    written, _, end = (folder / "runs/smoke/report/index.html").read_text().rpartition("</body>")
    click = "for (let i = 0; i < CLICKS; i++) document.querySelector('.networks thead th:nth-child(3)').click()"

    orders = {}
    for clicks in (1, 2):
        page.write_text(f"{written}<script>{click.replace('CLICKS', str(clicks))}</script></body>{end}")
        document, console = browse(page, tmp_path, "--dump-dom")
        assert console == []
        table = document.partition('<div class="scroll networks">')[2].partition("</table>")[0]
        rows = [re.findall("<td.*?>(.*?)</td>", row) for row in table.split("<tr")[2:]]
        orders[clicks] = [float(cells[2].rstrip("% !")) for cells in rows if cells[2]]
    assert orders[1] == sorted(orders[1])
    assert orders[2] == sorted(orders[2], reverse=True)
    assert len(orders[1]) > 2
