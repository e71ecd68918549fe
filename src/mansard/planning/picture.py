"""A picture of the page, drawn by an installed Chromium; nothing is installed and nothing is fetched."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "chrome")
SIZE = (1280, 2600)
_QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def find_browser() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


def browse(html: Path, *arguments: str, timeout_s: float = 120.0) -> str:
    """Open a local page without a window, with further arguments, and return what the browser prints.

    Raises: ValueError without a browser, or when it fails.
    """
    browser = find_browser()
    if browser is None:
        raise ValueError("no Chromium is installed to draw a picture (install chromium, or use --html)")
    with tempfile.TemporaryDirectory(prefix="mansard-") as profile:
        command = [browser, *_QUIET, f"--user-data-dir={profile}", *arguments, html.resolve().as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode != 0:
        raise ValueError(f"{browser} failed with status {done.returncode}: {done.stderr.strip()[-200:]}")
    return done.stdout


def draw(text: str, png: Path) -> None:
    """Write a picture of the page `text` to `png`.

    Raises: ValueError without a browser, or when no picture came out.
    """
    with tempfile.TemporaryDirectory(prefix="mansard-") as folder:
        page = Path(folder) / "plan.html"
        page.write_text(text, encoding="utf-8")
        browse(page, f"--window-size={SIZE[0]},{SIZE[1]}", f"--screenshot={png.resolve()}")
    if not png.is_file():
        raise ValueError(f"no picture was written to {png} (is the folder writable?)")
