"""Make the pictures of the page in `docs/assets` again, of an index of a folder of notes, mails and documentation.

    python docs/screenshots.py [folder of the index, made if missing]

Needs Chromium, Playwright and Pillow. Look at the pictures before you commit them.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from PIL import Image, ImageDraw
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright

from latelier.retrieve import Retriever

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

ASSETS = Path(__file__).parent / "assets"
GUIDES = {
    "search": ["search", "indexing", "not_found", "explanations"],
    "models": ["models", "encoding", "images"],
    "": ["cli", "serving", "mcp"],
}
NOTES = {
    "garden": (
        "Garden in spring",
        "garden, spring",
        "2024-03-01",
        "Tomatoes are sown indoors in March, and planted out.",
    ),
    "bread": ("Bread without kneading", "kitchen, bread", "2024-05-12", "Flour, water, salt and yeast rest overnight."),
    "compost": ("Compost", "garden", "2023-09-20", "Leaves, peels and coffee grounds become soil within a year."),
    "lentils": ("Soup of lentils", "kitchen, winter", "2023-12-02", "Red lentils cook in a quarter of an hour."),
}
MAILS = {
    "Trip to the observatory": (
        "Anna Berg",
        "3 Feb 2025",
        "The bus to the observatory leaves at eight. Bring a torch.",
    ),
    "Bill for the new mirror": ("Tom Lind", "11 Mar 2025", "Attached is the bill for the mirror of the telescope."),
    "Meeting moved to Tuesday": ("Mira Voss", "2 Apr 2025", "The meeting of the board is on Tuesday at seven."),
    "Who has the key of the dome?": ("Anna Berg", "15 May 2025", "I was at the dome and could not find the key."),
    "Photographs of the eclipse": ("Tom Lind", "14 Mar 2025", "I took these of the moon with the small telescope."),
}
PAGES = [
    "Annual report of the society for astronomy.",
    "The telescope on the hill has a new mirror of two metres.",
    "The treasurer reports a surplus, to be spent on a new dome.",
]
QUESTION = "?q=" + quote("what did we buy for the telescope")
FILTER = "&filter=" + quote('["path","begins with","mail/"]')
COMMAND = [sys.executable, "-c", "from latelier.cli import main; main()"]
COLOURS = 64
LARGEST_BYTES = 150_000
PATIENCE_MS = 120_000


def open_page(browser: Browser, url: str, *, width: int, height: int, scheme: str = "light") -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(PATIENCE_MS)
    for _ in range(3):  # the first searches of a server load its kernels, which the times on the page would show
        page.goto(url)
        expect(page.locator("#times")).to_contain_text("highlights", timeout=PATIENCE_MS)
    return page


def save(name: str, picture: bytes) -> None:
    """Save a picture with few colours, which halves its size and cannot be seen."""
    path = ASSETS / f"{name}.png"
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    image.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    print(f"{path}: {size / 1000:.0f} kB")
    if size > LARGEST_BYTES:
        raise SystemExit(f"{path} is larger than {LARGEST_BYTES:,} bytes")


def around(page: Page, element: Locator, margin: int = 12) -> bytes:
    """Return a picture of an element with the page around it."""
    page.evaluate("scrollTo(0, 0)")  # boxes are relative to what is visible, pictures to the whole page
    box = element.bounding_box()
    clip = {"x": box["x"] - 3 * margin, "y": box["y"] - margin / 2}
    clip |= {"width": box["width"] + 4 * margin, "height": box["height"] + margin}
    return page.screenshot(clip=clip, full_page=True)


def results(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        page = open_page(browser, url + QUESTION, width=1280, height=860, scheme=scheme)
        save("page-results" if scheme == "light" else "page-dark", page.screenshot())


def start(browser: Browser, url: str) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(url)
    expect(page.locator("#start section")).to_have_count(3, timeout=PATIENCE_MS)
    expect(page.locator("#facets fieldset").first).to_be_visible(timeout=PATIENCE_MS)
    save("page-start", page.screenshot())


def filters(browser: Browser, url: str) -> None:
    page = open_page(browser, url + QUESTION, width=1280, height=700)
    page.locator("#facets").get_by_role("button", name="EML").click()
    expect(page.locator("#facets button[aria-pressed=true]")).to_have_count(1)
    expect(page.locator("#times")).to_contain_text("highlights", timeout=PATIENCE_MS)
    save("page-filters", page.screenshot())


def heat_map(browser: Browser, url: str) -> None:
    page = open_page(browser, url + QUESTION, width=1000, height=760)
    item = page.locator("#results > li").first
    item.get_by_role("button", name="Heat map").click()
    expect(page.locator(".heat")).to_be_visible()
    save("page-heat-map", around(page, item))


def narrow(browser: Browser, url: str) -> None:
    for scheme in ("light", "dark"):
        page = open_page(browser, url + QUESTION, width=360, height=780, scheme=scheme)
        page.get_by_role("button", name="Heat map").first.click()
        expect(page.locator(".heat")).to_be_visible()
        save(f"page-narrow-{scheme}", page.screenshot())
    page.get_by_role("button", name="Filters").click()
    save("page-drawer-dark", page.screenshot())


def why_not(browser: Browser, url: str) -> None:
    page = open_page(browser, url + QUESTION + FILTER, width=1000, height=760)
    page.locator("#why-not summary").click()
    page.fill("#why-not-id", "report.pdf")
    page.get_by_role("button", name="Ask").click()
    expect(page.locator("#why-not-answer")).to_contain_text("filter", timeout=PATIENCE_MS)
    save("page-why-not", around(page, page.locator("#why-not")))


def picture(browser: Browser, folder: Path) -> None:
    """Show a drawn page, with the map of a tiny model of random weights."""
    from image_models import save_image_model

    sheet = Image.new("RGB", (620, 700), "white")
    draw = ImageDraw.Draw(sheet)
    draw.text((60, 50), "Annual report", fill="black", font_size=40)
    for i in range(7):
        draw.text((60, 130 + i * 26), "Profits rose in the second quarter.", fill="#333", font_size=18)
    for i, height in enumerate((80, 140, 110, 210)):
        draw.rectangle((80 + i * 110, 640 - height, 160 + i * 110, 640), fill=["#c33", "#36c", "#2a7", "#e90"][i])
    sheet.save(folder / "report.png")
    with Retriever(save_image_model("colqwen2.5", folder / "model"), folder / "pictures", device="cpu") as retriever:
        retriever.add([{"id": "report.png", "image": folder / "report.png"}])
    with served(folder / "pictures") as url:
        page = browser.new_page(viewport={"width": 1000, "height": 860})
        page.goto(f"{url}?q=a+table+of+profits")
        page.get_by_role("button", name="Which part of the page?").click(timeout=PATIENCE_MS)
        page.get_by_role("button", name="table").click()
        expect(page.locator(".thumbnail canvas")).to_be_visible(timeout=PATIENCE_MS)
        save("page-picture", around(page, page.locator("#results > li").first))


@contextmanager
def served(index: Path, *options: str) -> Iterator[str]:
    started = [*COMMAND, "serve", str(index), "--port", "0", "--read-only", "--no-log", *options]
    server = subprocess.Popen(started, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().split()[1] + "/"
    finally:
        server.terminate()
        server.wait()


def write_files(folder: Path) -> None:
    from reading.test_page_images import pdf_of

    for name in ("guides/search", "guides/models", "notes", "mail", "code"):
        (folder / name).mkdir(parents=True)
    for place, names in GUIDES.items():
        for name in names:
            shutil.copy(Path(__file__).with_name(f"{name}.md"), folder / "guides" / place)
    for name in ("rank.py", "errors.py"):
        shutil.copy(Path(__file__).parents[1] / "src" / "latelier" / name, folder / "code")
    for name, (title, tags, date, text) in NOTES.items():
        matter = f"---\ntitle: {title}\ntags: [{tags}]\ndate: {date}\n---\n"
        (folder / "notes" / f"{name}.md").write_text(f"{matter}\n{text}\n")
    for number, (subject, (sender, date, text)) in enumerate(MAILS.items(), start=1):
        address = f"{sender.split()[0].lower()}@example.org"
        heads = f"From: {sender} <{address}>\nTo: board@example.org\nSubject: {subject}\nDate: {date} 09:15:00 +0100\n"
        (folder / "mail" / f"{number}.eml").write_text(f"{heads}\n{text}\n")
    (folder / "report.pdf").write_bytes(pdf_of(*[(595, 300)] * len(PAGES), texts=PAGES))


def main() -> None:
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    files = folder / "files"
    if not files.is_dir():
        write_files(files)
        subprocess.run([*COMMAND, "index", str(files), str(folder / "notes"), "--device", "cpu"], check=True)
    with served(folder / "notes", "--serve-files", str(files)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for _ in range(3):  # the first searches of a process take longer
            open_page(browser, url + QUESTION, width=1000, height=760).close()
        for take in (results, start, filters, heat_map, narrow, why_not):
            take(browser, url)
        picture(browser, Path(tempfile.mkdtemp()))
        browser.close()


if __name__ == "__main__":
    main()
