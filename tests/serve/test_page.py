"""The page in a real browser: what a person types, sees, opens and filters, with and without a mouse."""

import re
import shutil
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import expect, sync_playwright

from image_models import pictures, save_image_model
from latelier.indexes import Flat
from latelier.retrieve import Retriever
from reading.test_page_images import pdf_of
from serve.conftest import Process

pytestmark = pytest.mark.slow
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
HOSTILE = "A hostile page: <script>document.title = 'run'</script><img src=x onerror=\"document.title = 'run'\">"


@pytest.fixture(scope="module")
def url(shallow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("page") / "records"
    with Retriever(shallow, folder, device="cpu") as retriever:
        retriever.add(
            [
                {"id": "fruit", "text": "Bananas are healthy.", "year": 2019, "kind": "food", "ripe": True},
                {"id": "moon", "text": "The moon is far from the earth.", "year": 2021, "kind": "sky", "isbn": "2021"},
                {"id": "mars", "text": "Mars is the fourth planet from the sun.", "year": 2023, "kind": "sky"},
                {"id": "hostile", "text": HOSTILE, "year": 2025, "kind": "<b>bold</b>"},
            ]
        )
    server = Process(str(folder), "--model", shallow, "--device", "cpu", "--no-log")
    yield server.url
    server.stop()


LARGE = 2**53 + 1  # JavaScript rounds it
NUMBERS = {"large": 1e20, "whole": float(2**60), "negative": -1e19, "huge": 2**64, "least": 2**63, "exact": -(2**63)}
FILLER = "Kings ruled before the republic and nobody knows why they did. " * 20
REPORT = {"title": "A healthy report", "page": 7, "url": "https://example.org/report", "path": "report.pdf"}
PLACES = [
    {
        "id": "fruit.py",
        "text": "import kings\n" * 40 + "    # bananas are healthy\n    return True\n",
        "path": "a b/#1.py",
    },
    {"id": "report.pdf", "text": "Fruit.", "changed": "2024-02-03T04:05:06Z", "share": 1 / 3, "metadata": REPORT},
    *({"id": f"moon {i}", "text": f"The moon {i}.", "kind": "odd" if i == 7 else "even"} for i in range(12)),
]
LONG = f"{FILLER}Bananas are healthy. {FILLER}"
VALUES = [
    {"id": "exact", "text": "The moon.", "isbn": LARGE, "kind": "", "digits": str(LARGE)},
    {"id": "rounded", "text": "The sun.", "isbn": 2**53, "kind": "sky", "huge": 2**70, "ripe": True},
    {"id": "odd", "text": "The earth.", "metadata": {"id": 5, "text": "other", "isbn": 3, "lines": "a\nb"}},
]


def notes(folder):
    """Write files of three kinds in two folders, with lists and dates in two forms."""
    texts = {
        "garden/kale.md": "---\ntitle: Sea kale\ntags: [sea]\ndate: 2023-03-01\n---\n"
        "# Sea kale\n\nIt *grows* on the beach.\n",
        "garden/spring/tides.md": "---\ntitle: Tides\ntags: [sea, sky]\ndate: 2024-05-12\n---\n"
        "The moon draws the sea.\n",
        "mail/1.eml": "From: Anna Berg <anna@example.org>\nTo: all@example.org\nSubject: Trip to the planetarium\n"
        "Date: Fri, 14 Mar 2025 23:59:00 +0100\n\nThe bus leaves at eight.\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "report.pdf").write_bytes(pdf_of(texts=["The year in numbers.", "Bananas are healthy."]))
    return folder


@pytest.fixture(scope="module")
def many(shallow, tmp_path_factory):
    folder = tmp_path_factory.mktemp("many")
    numbers = [{"id": name, "text": "The moon.", name: number} for name, number in NUMBERS.items()]
    moon = [(LARGE, "The moon is far away from the earth.")]
    contents = {
        "moved": moon,
        "whole": moon,
        "values": VALUES,
        "numbers": [*numbers, {"id": "other", "text": "The sun."} | dict.fromkeys(NUMBERS, 0.5)],
        "pooled": moon,
        "long": [("long", LONG)],
        "places": PLACES,
        "cut": moon,
        "odd": [{"id": name, "text": "Fruit.", "homepage": f"http://[{name}"} for name in ("first", "second", "third")],
        "tags": [{"id": f"{i}", "text": "The moon.", "tag": f"tag {max(i, 9)}"} for i in range(32)],
        "notes": notes(folder / "files"),
        "prices": [{"id": "prices.csv", "path": "prices.csv", "text": "fruit,price\nplums,7\npears,3\n"}],
    }
    for name, documents in contents.items():
        lengths = {"max_length_query": 6} if name == "cut" else {}
        with Retriever(shallow, folder / name, device="cpu", model_options=lengths) as retriever:
            passages = 64 if name == "long" else None
            if name == "notes":
                retriever.synchronise(folder / "files")
            else:
                retriever.add(documents, pool_factor=2 if name == "pooled" else 1, passages=passages)
    options = ("--model", shallow, "--device", "cpu", "--no-log", "--link-prefix", "https://example.org/of?me=1&at=")
    options += ("--serve-files", f"notes={folder / 'files'}")
    server = Process(*(str(folder / name) for name in contents), *options)
    shutil.move(folder / "moved", folder / "elsewhere")
    yield server.url
    server.stop()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("needs Chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, url):
    page, errors = browser.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    # What the content security policy forbids is reported on the console.
    page.on("console", lambda message: errors.append(message.text) if "violates" in message.text else None)
    page.set_default_timeout(60_000)
    page.goto(url)
    yield page
    page.close()
    assert errors == []


def search(page, text):
    page.fill("#query", text)
    expect(page.locator("#status")).to_have_text(re.compile(r"^\d+ documents in \d+ ms$"), timeout=60_000)
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)


def ids(page):
    return page.locator("#results h2").all_inner_texts()


def test_typing_shows_the_right_document_its_words_and_a_link_to_the_search(page, browser):
    asked = []
    page.on("request", lambda request: asked.append(request) if request.url.endswith("/search") else None)
    page.locator("#query").press_sequentially("healthy fruit", delay=10)
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)
    assert ids(page)[0] == "fruit"
    assert len(asked) < 4  # 13 characters were typed
    marked = page.locator("#results > li").first.locator("mark").all_inner_texts()
    assert "healthy" in marked
    assert parse_qs(urlsplit(page.url).query) == {"q": ["healthy fruit"]}
    again = browser.new_page()
    again.goto(page.url)
    expect(again.locator("#results h2").first).to_have_text("fruit", timeout=60_000)
    assert again.input_value("#query") == "healthy fruit"
    again.close()


def test_the_time_of_each_stage_is_shown(page):
    search(page, "healthy fruit")
    names = ["queue", "encode", "search", "read", "network"]
    times = page.locator("#times li")
    expect(times).to_have_text([re.compile(rf"^{name} \d+\.\d ms$") for name in names])
    assert page.locator("#mode option:checked").inner_text() == "usual: meaning and words"
    page.select_option("#mode", "keywords")
    expect(times).to_have_count(4)
    assert [time.split()[0] for time in times.all_text_contents()] == ["queue", "search", "read", "network"]


def facet(page, name):
    return page.locator("#facets fieldset", has=page.locator("legend", has_text=re.compile(f"^{name}$")))


def add_condition(page, field, operator, value):
    if page.locator("#another").get_attribute("open") is None:
        page.locator("#another summary").click()
    page.select_option("#condition-field", field)
    page.select_option("#condition-operator", operator)
    page.fill("#condition-value", value)
    page.get_by_role("button", name="Add").click()


def test_conditions_are_tags_that_a_click_removes(page):
    search(page, "planets")
    page.locator("#results").get_by_role("button", name="kind: sky").first.click()
    expect(page.locator("#status")).to_contain_text("2 documents in")
    assert set(ids(page)) == {"moon", "mars"}
    tags = page.locator("#conditions button")
    expect(tags.first).to_be_focused()
    assert page.locator("#condition-field option").all_text_contents() == ["isbn", "kind", "ripe", "year"]
    add_condition(page, "year", ">", "2021")
    expect(page.locator("#status")).to_contain_text("1 document in")
    assert ids(page) == ["mars"]
    expect(tags).to_have_text(["kind: sky \u00d7", "year: above 2021 \u00d7"])
    page.get_by_role("button", name="Remove the filter year: above 2021").click()
    expect(page.locator("#status")).to_contain_text("2 documents in")
    page.get_by_role("button", name="Remove the filter kind: sky").click()
    expect(page.locator("#status")).to_contain_text("4 documents in")


def test_the_column_has_the_fields_that_tell_documents_apart(page):
    """Not `ripe` and `isbn`, of one value; of years, of which each document has another one, the limits."""
    expect(facet(page, "kind").get_by_role("button")).to_have_text(["sky 2", "<b>bold</b> 1", "food 1"])
    assert page.locator("#facets legend").all_inner_texts() == ["kind", "year"]
    search(page, "planets")
    page.get_by_label("year from").fill("2021")
    page.get_by_label("year from").blur()
    expect(page.locator("#status")).to_contain_text("3 documents in")
    expect(facet(page, "kind").get_by_role("button")).to_have_text(["sky 2", "<b>bold</b> 1"])
    facet(page, "kind").get_by_role("button", name="sky").click()
    expect(page.locator("#status")).to_contain_text("2 documents in")
    # A condition does not count for its own field: another value is a click away.
    expect(facet(page, "kind").get_by_role("button")).to_have_text(["sky 2", "<b>bold</b> 1"])
    facet(page, "kind").get_by_role("button", name="bold").click()
    expect(page.locator("#results h2")).to_have_text(["hostile"])
    facet(page, "kind").get_by_role("button", name="bold").click()
    expect(page.locator("#conditions li")).to_have_text(["year: from 2021 \u00d7"])


def test_filters_offer_dates_as_dates(page, many):
    page.goto(f"{many}/?index=places&q=planets&k=20")
    items = page.locator("#results > li")
    expect(items).to_have_count(14, timeout=60_000)
    odd = facet(page, "kind").get_by_role("button", name="odd 1", exact=True)
    odd.click()
    expect(items).to_have_count(1)
    expect(odd).to_have_attribute("aria-pressed", "true")
    odd.click()
    expect(items).to_have_count(14)
    page.goto(f"{many}/?index=notes&q=planets&k=20")
    expect(items).to_have_count(4, timeout=60_000)
    last = page.get_by_label("date to")
    expect(last).to_have_attribute("placeholder", "14 Mar 2025")
    last.fill("any day")
    last.blur()
    assert last.evaluate("(input) => input.validationMessage") == "Write a day, such as 14 Mar 2025."
    last.fill("14 march 2025")
    last.blur()
    expect(page.locator("#conditions li")).to_have_text(["date: up to 14 Mar 2025 \u00d7"])
    expect(items).to_have_count(3)
    expect(last).to_have_value("14 Mar 2025")
    last.fill("2025-03-13")
    last.blur()
    expect(items).to_have_count(2)


def test_kinds_folders_and_elements_of_lists_are_chosen_in_a_drawer_on_a_narrow_screen(browser, many):
    page = browser.new_page(viewport={"width": 360, "height": 780})
    page.goto(f"{many}/?index=notes&q=planets")
    items = page.locator("#results > li")
    expect(items).to_have_count(4, timeout=60_000)
    assert page.locator("#filters").is_hidden()
    page.get_by_role("button", name="Filters").click()
    expect(facet(page, "Kind").get_by_role("button")).to_have_text(["MD 2", "EML 1", "PDF 1"])
    expect(facet(page, "Folder").get_by_role("button")).to_have_text(["garden/ 2", "mail/ 1"])
    expect(facet(page, "tags").get_by_role("button")).to_have_text(["sea 2", "sky 1"])
    facet(page, "tags").get_by_role("button", name="sea").click()
    expect(items).to_have_count(2)
    facet(page, "Kind").get_by_role("button", name="MD").click()
    facet(page, "Folder").get_by_role("button", name="garden/").click()
    expect(facet(page, "Folder").get_by_role("button")).to_have_text(["garden/ up", "spring/ 1"])
    page.keyboard.press("Escape")
    assert page.locator("#filters").is_hidden()
    assert page.input_value("#query") == "planets"
    expect(page.locator("#open-filters")).to_have_text("Filters (3)")
    expect(page.locator("#conditions li")).to_have_text(["tags: sea \u00d7", "kind: MD \u00d7", "in garden/ \u00d7"])
    page.reload()
    expect(items).to_have_count(2, timeout=60_000)
    assert set(ids(page)) == {"Sea kale", "Tides"}
    page.close()


def test_the_first_screen_offers_searches_and_back_and_forward_restore_them(page):
    page.locator("#start").get_by_role("button", name="What does “Bananas are healthy” say?").click()
    expect(page.locator("#results h2").first).to_have_text("fruit", timeout=60_000)
    page.fill("#query", "planets")
    page.keyboard.press("Enter")
    expect(page.locator("#results h2").first).to_have_text("mars", timeout=60_000)
    page.go_back()
    expect(page.locator("#results h2").first).to_have_text("fruit", timeout=60_000)
    assert page.input_value("#query") == "What does “Bananas are healthy” say?"
    page.go_forward()
    expect(page.locator("#results h2").first).to_have_text("mars", timeout=60_000)
    page.wait_for_timeout(1500)
    page.locator("#query").focus()
    page.keyboard.press("Escape")
    expect(page.locator("#start").get_by_role("button", name="planets")).to_be_visible()
    assert page.locator("#why-not").is_hidden()


def test_the_marks_of_a_long_text_are_in_its_snippet(page, many):
    page.goto(f"{many}/?index=long&q=healthy+fruit")
    text = page.locator("#results .text").first
    expect(text.locator("mark", has_text="Bananas")).to_be_in_viewport(timeout=60_000)
    assert len(text.inner_text()) < 300
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(text).to_have_text(LONG.strip())
    expect(text.locator("mark", has_text="Bananas")).to_be_in_viewport()


def test_a_result_says_where_it_is_and_keeps_the_indentation_of_code(page, many):
    page.goto(f"{many}/?index=places&q=healthy+fruit&k=10")
    items = page.locator("#results > li")
    expect(items).to_have_count(10, timeout=60_000)
    code = items.filter(has_text="fruit.py")
    expect(code.locator(".where")).to_have_text("a b \u203a #1.py")
    assert code.locator("h2 a").get_attribute("href") == "https://example.org/of?me=1&at=a%20b/%231.py"
    assert "import kings\n    # bananas are healthy\n    return True" in code.locator(".text").inner_text()
    report = items.filter(has=page.get_by_role("link", name="A healthy report"))
    expect(report.locator(".where")).to_have_text("report.pdfpage 7")
    assert report.locator("h2 a").get_attribute("href") == "https://example.org/report"
    assert report.locator(".metadata li").all_inner_texts() == [
        "url: example.org",
        "changed: 3 Feb 2024",
        "share: 0.333333",
    ]
    page.get_by_role("button", name="More results").click()
    expect(items).to_have_count(14)
    expect(page.get_by_role("button", name="More results")).to_be_hidden()
    report.get_by_role("button", name="changed").click()
    expect(items).to_have_count(1)


def test_a_document_that_cannot_be_shown_says_so_and_hides_no_other(browser, many):
    def spoil(route):
        answer = route.fetch()
        found = answer.json()
        found["results"][0][1]["score"] = None
        route.fulfill(response=answer, json=found)

    page = browser.new_page()
    page.route("**/search", spoil)
    page.goto(f"{many}/?index=odd&q=fruit")
    items = page.locator("#results > li")
    expect(items).to_have_count(3, timeout=60_000)
    expect(items.nth(1)).to_contain_text("This document cannot be shown")
    expect(page.locator(".metadata", has_text="homepage: http://[")).to_have_count(2)
    expect(items.nth(2).locator("mark").first).to_be_visible(timeout=60_000)
    assert items.nth(1).locator("mark").count() == 0
    page.close()


def test_a_search_that_finds_nothing_offers_another(page):
    search(page, "planets")
    add_condition(page, "kind", "=", "nothing is of this kind")
    expect(page.locator("#status")).to_have_text("No document found.", timeout=60_000)
    assert ids(page) == []
    page.get_by_role("button", name="Search without the filters").click()
    expect(page.locator("#results h2")).to_have_count(4, timeout=60_000)


def test_a_document_with_a_script_is_shown_as_text(page):
    search(page, "a hostile page")
    shown = page.locator("#results li", has=page.locator("h2", has_text="hostile")).locator(".text")
    expect(shown).to_have_text(HOSTILE)
    assert page.locator("#results img, #results script, #results b").count() == 0
    assert page.title() == "a hostile page - Latelier"


def test_a_question_why_a_document_is_not_found_is_answered(page):
    search(page, "healthy fruit")
    page.locator("#why-not summary").click()
    page.fill("#why-not-id", "no such id")
    page.get_by_role("button", name="Ask").click()
    answer = page.locator("#why-not-answer")
    expect(answer).to_contain_text("no such id")
    page.fill("#why-not-id", "fruit")
    page.get_by_role("button", name="Ask").click()
    expect(answer).to_contain_text("rank 1")
    assert "no such id" not in answer.inner_text()
    page.get_by_role("button", name="year: 2021").click()
    expect(page.locator("#status")).to_contain_text("1 document in")
    page.get_by_role("button", name="Ask").click()
    expect(answer.locator("li").first).to_contain_text("The filters leave it out.")
    answer.get_by_role("button", name="Leave out the filters").click()
    expect(page.locator("#results h2")).to_have_count(4)


def test_everything_is_reached_by_keyboard(page):
    page.locator("footer").click()
    page.keyboard.press("/")
    page.keyboard.type("healthy fruit")
    page.keyboard.press("Enter")
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Heat map":
            break
    page.keyboard.press("Enter")
    expect(page.locator(".heat")).to_be_visible()
    assert page.locator(".heat tbody th").all_inner_texts() == ["[CLS]", "healthy", "fruit", "[SEP]"]
    assert page.locator(".heat td.best").count() == 4
    button = page.get_by_role("button", name="Heat map").first
    assert button.get_attribute("aria-expanded") == "true"
    page.keyboard.press("Enter")
    expect(page.locator(".heat tbody tr")).to_have_count(0)


def test_of_many_values_the_frequent_ones_are_offered_and_others_completed(browser, many):
    page = browser.new_page()
    page.goto(f"{many}/?index=tags&q=moon")
    expect(page.locator("#facets button")).to_have_text(["tag 9 10"], timeout=60_000)
    page.locator("#another summary").click()
    page.get_by_role("combobox", name="Value", exact=True).fill("TAG 3")
    values = page.locator("#condition-values option")
    expect(values).to_have_count(2)
    assert [each.get_attribute("value") for each in values.all()] == ["tag 30", "tag 31"]
    page.close()


def test_a_query_that_is_cut_can_be_read_whole(browser, many):
    page = browser.new_page()
    page.goto(f"{many}/?index=cut&q=what+is+it+that+is+far+from+the+earth")
    expect(page.locator("#status")).to_contain_text("its last 5 tokens were not read", timeout=60_000)
    page.get_by_label("Read the whole query").check()
    expect(page.locator("#status")).to_have_text(re.compile(r"^1 document in \d+ ms$"), timeout=60_000)
    expect(page.locator("#results mark", has_text="earth")).to_be_visible(timeout=60_000)
    page.reload()
    expect(page.get_by_label("Read the whole query")).to_be_checked()
    assert "whole" in page.url
    page.close()


def test_an_error_says_what_is_wrong(page):
    page.fill("#query", "too long " * 30_000)
    expect(page.locator("#status")).to_contain_text("this server takes at most 200,000", timeout=60_000)
    assert page.locator("#status").get_attribute("class") == "error"


@pytest.mark.parametrize("width", [1000, 360])
def test_a_page_is_shown_with_the_part_that_matches(browser, width, start, tmp_path):
    pictures()[0].save(tmp_path / "chart.png")
    model = save_image_model("colqwen2", tmp_path / "model")
    with Retriever(model, Flat(tmp_path / "index"), device="cpu") as retriever:
        retriever.add([{"id": "a", "image": tmp_path / "chart.png"}])
    server = start(tmp_path / "index", "--model", model, "--device", "cpu", "--no-log")
    page, errors = browser.new_page(viewport={"width": width, "height": 800}), []
    page.on("console", lambda message: errors.append(message.text))
    page.goto(f"{server.url}/?q=a+table")
    expect(page.get_by_role("img", name="Picture of chart.png")).to_be_visible(timeout=60_000)
    assert page.locator("#mode option:checked").inner_text() == "usual: meaning"
    page.get_by_role("button", name="Which part of the page?").press("Enter")
    expect(page.get_by_role("img", name="(whole query): strongest in row")).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="table").press("Enter")
    place = re.compile(r"table: strongest in row [1-4], column [1-5] of 4 x 5 patches")
    expect(page.get_by_role("img", name=place)).to_be_visible()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert errors == []
    (tmp_path / "chart.png").unlink()
    page.reload()
    expect(page.locator(".thumbnail")).to_contain_text("its file is not there any more", timeout=60_000)
    page.close()


def check_access(page, width):
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing is wider than the screen


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_assistive_technology_finds_nothing_to_complain_about(browser, url, scheme, width):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto(f"{url}/?q=planets")
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Heat map").first.click()
    expect(page.locator(".heat")).to_be_visible()
    page.locator("#why-not summary").click()
    check_access(page, width)
    if width < 900:
        page.get_by_role("button", name="Filters").click()
    page.locator("#another summary").click()
    facet(page, "kind").get_by_role("button", name="sky").click()
    expect(page.locator("#status")).to_contain_text("2 documents in")
    expect(page.locator("#results li mark").first).to_be_visible()
    expect(page.locator("#results")).to_have_attribute("aria-busy", "false")  # it is dimmed while it is not current
    check_access(page, width)
    page.goto(url)
    expect(page.locator("#start section").first).to_be_visible(timeout=60_000)
    page.locator("#start summary").click()
    check_access(page, width)
    page.goto(f"{url}/nothing/here")
    check_access(page, width)
    page.close()


@pytest.mark.parametrize(
    ("address", "unknown"),
    [
        ({"filter": '["zzz","=","1"]'}, 'filter ["zzz","=","1"]'),
        ({"filter": '["year","~","1"]'}, 'filter ["year","~","1"]'),
        ({"filter": "damaged"}, "filter damaged"),
        ({"index": "nope"}, "index nope"),
        ({"index": "nope", "filter": '["year","=","1"]'}, 'index nope, filter ["year","=","1"]'),
        ({"mode": "magic", "k": "7"}, "mode magic, k 7"),
    ],
)
def test_an_address_with_something_unknown_names_it_and_searches_nothing(page, url, address, unknown):
    asked = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("/search") else None)
    page.goto(f"{url}/?{urlencode({'q': 'moon'} | address)}")
    status = page.get_by_role("status").first
    message = f"Not searched, because the address names what is unknown here: {unknown}. Press Search to leave it out."
    expect(status).to_have_text(message, timeout=60_000)
    page.wait_for_timeout(500)
    assert (ids(page), asked) == ([], [])
    page.get_by_role("button", name="Search", exact=True).click()
    expect(status).to_have_text(re.compile(r"^4 documents in"), timeout=60_000)
    assert parse_qs(urlsplit(page.url).query) == {"q": ["moon"]}


def test_a_condition_that_is_known_stays_beside_one_that_is_not(page, url):
    filters = urlencode([("q", "moon"), ("filter", '["kind","=","sky"]'), ("filter", '["zzz","=","1"]')])
    page.goto(f"{url}/?{filters}")
    expect(page.locator("#status")).to_contain_text('filter ["zzz","=","1"]. Press Search', timeout=60_000)
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("#status")).to_contain_text("2 documents in", timeout=60_000)
    assert set(ids(page)) == {"moon", "mars"}


def test_each_token_restores_the_search_once(browser, shallow, tmp_path, monkeypatch):
    with Retriever(shallow, tmp_path / "closed", device="cpu") as retriever:
        retriever.add([{"id": "moon", "text": "The moon.", "kind": "sky"}])
        retriever.add([{"id": "fruit", "text": "Bananas are healthy.", "kind": "food"}])
    monkeypatch.setenv("LATELIER_READ_TOKEN", "r" * 20)
    server = Process(str(tmp_path / "closed"), "--model", shallow, "--device", "cpu", "--no-log")
    page = browser.new_page()
    search = urlencode({"q": "planets", "filter": '["kind","=","sky"]'})
    page.goto(f"{server.url}/?{search}")
    row, found = page.locator("#locked"), page.locator("#results h2")
    expect(row).to_be_visible()
    expect(page.locator("#token-problem")).to_have_text("")
    assert page.locator("#form").is_hidden()
    page.fill("#token", "w" * 20)
    page.keyboard.press("Enter")
    expect(page.locator("#token-problem")).to_contain_text("does not accept this token")
    check_access(page, 1280)
    page.fill("#token", "r" * 20)
    page.keyboard.press("Enter")
    expect(found).to_have_text(["moon"], timeout=60_000)
    expect(row).to_be_hidden()
    expect(page.locator("#query")).to_be_focused()
    expect(page.locator("#conditions li")).to_have_count(1)
    page.evaluate("document.getElementById('locked').dispatchEvent(new Event('submit'))")  # as a second token does
    page.wait_for_timeout(500)
    assert page.locator("#conditions li").count() == 1
    assert ids(page) == ["moon"]
    page.close()
    server.stop()


CLICKED = {
    "values": {
        f"isbn: {LARGE}": "exact",
        f"isbn: {2**53}": "rounded",
        f"huge: {2**70}": "rounded",
        f"digits: {LARGE}": "exact",
        "ripe: true": "rounded",
        "kind:": "exact",
    },
    "numbers": {f"{name}:": name for name in NUMBERS},  # beyond what JavaScript or SQLite counts exactly
}


@pytest.mark.parametrize("index", CLICKED)
def test_a_click_on_a_value_filters_by_exactly_this_value(page, many, index):
    page.goto(f"{many}/?index={index}&q=planets")
    found = page.locator("#results h2")
    count = {"values": 3, "numbers": 7}[index]
    expect(found).to_have_count(count, timeout=60_000)
    for value, id in CLICKED[index].items():
        result = page.locator("#results > li", has=page.locator("h2", has_text=id))
        result.get_by_role("button", name=value, exact=index == "values").click()
        expect(found).to_have_text([id], timeout=60_000)
        page.reload()  # the address keeps it
        expect(found).to_have_text([id], timeout=60_000)
        page.get_by_role("button", name="Remove the filter").click()
        expect(found).to_have_count(count, timeout=60_000)
    assert found.count() == count


def test_values_that_no_filter_names_are_not_offered_and_large_numbers_are_typed(page, many):
    page.goto(f"{many}/?index=values&q=planets")
    odd = page.locator("#results > li", has=page.locator("h2", has_text="odd")).locator(".metadata")
    expect(odd.get_by_role("button")).to_have_text(["isbn: 3"], timeout=60_000)
    assert set(odd.locator("span").all_text_contents()) == {"id: 5", "text: other", "lines: a\nb"}
    page.goto(f"{many}/?index=numbers&q=planets")
    add_condition(page, "large", "=", "100000000000000000000")
    expect(page.locator("#results h2")).to_have_text(["large"], timeout=60_000)


def test_an_index_that_cannot_be_read_leaves_the_others_to_search(page, many):
    page.goto(f"{many}/?q=planets")
    expect(page.locator("#about")).to_contain_text("moved: the server cannot use the files", timeout=60_000)
    page.select_option("#index", "whole")
    expect(page.locator("#results h2")).to_have_text(str(LARGE), timeout=60_000)
    expect(page.locator("#about")).to_contain_text("whole: 1 document")
    assert page.locator("#index").input_value() == "whole"


def test_a_pooled_index_and_large_integer_ids(page, many):
    page.goto(f"{many}/?index=pooled&q=planets")
    expect(page.locator("#results h2")).to_have_text(str(LARGE), timeout=60_000)
    expect(page.locator("#status")).to_contain_text("1 document in")
    assert page.locator("#results mark").count() == 0
    page.select_option("#index", "whole")
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)


def test_the_start_page_says_what_there_is_and_folders_can_be_browsed(page, many):
    page.goto(f"{many}/?index=notes")
    start = page.locator("#start")
    expect(start).to_contain_text("notes holds 4 documents in 3 kinds of files, from 2 folders.", timeout=60_000)
    expect(start.locator(".list").get_by_role("img", name="Mail")).to_have_count(1)
    assert sorted(start.locator(".list button").all_inner_texts())[0].strip().startswith("Sea kale")
    asked = start.locator("section", has_text="Ask, for example").get_by_role("button").all_inner_texts()
    assert "What does “Trip to the planetarium” say?" in asked
    assert len(asked) == len(set(asked)) >= 3
    fields = start.locator("dd").filter(has_text="date, from, modified, pages, path, tags, title, to")
    expect(fields).to_be_hidden()
    start.get_by_text("About this index").click()
    expect(fields).to_be_visible()
    start.locator(".tiles").get_by_role("button", name="garden").click()
    expect(start).to_contain_text("Files in garden/")
    expect(start.locator(".list button")).to_have_text(["kale.md"])
    start.locator(".tiles").get_by_role("button", name="spring").click()
    expect(start.locator(".list button")).to_have_text(["tides.md"])
    start.locator(".list button").click()
    expect(page.locator("#results .text")).to_contain_text("The moon draws the sea.")
    page.go_back()
    expect(start.locator(".list button")).to_have_text(["tides.md"])


def test_a_result_has_what_tells_it_from_others(page, many):
    page.goto(f"{many}/?index=notes&q=trip+to+the+planets")
    mail = page.locator("#results > li", has=page.get_by_role("img", name="Mail"))
    expect(mail.locator(".where")).to_have_text("Anna Berg14 Mar 2025mail \u203a 1.eml", timeout=60_000)
    expect(mail.locator(".metadata li", has_text="from")).to_have_count(0)
    assert mail.get_by_role("img", name="score").get_attribute("title").startswith("score ")
    widths = page.evaluate("[...document.querySelectorAll('.bar span')].map((bar) => bar.offsetWidth)")
    assert widths == sorted(widths, reverse=True)
    assert widths[0] > widths[-1]  # which is 0 for the last of all that were compared
    kale = page.locator("#results > li", has_text="Sea kale")
    expect(kale.locator(".text")).to_contain_text("It grows on the beach.")
    expect(kale.locator(".metadata li")).to_contain_text(["tags: sea"])
    kale.get_by_role("button", name="garden").click()
    expect(page.locator("#conditions li")).to_have_text(["in garden/ \u00d7"])


def test_the_original_is_opened_and_what_was_found_copied(browser, many):
    context = browser.new_context(permissions=["clipboard-read", "clipboard-write"], accept_downloads=True)
    page = context.new_page()
    page.goto(f"{many}/?index=notes&q=healthy+fruit")
    report = page.locator("#results > li", has=page.get_by_role("img", name="PDF"))
    address = report.get_by_role("link", name="Open").get_attribute("href", timeout=60_000)
    assert address == "v1/indexes/notes/files/report.pdf#page=2"
    report.get_by_role("button", name="Page as picture").click()
    expect(report.get_by_role("img", name="Page 2 of report")).to_be_visible(timeout=60_000)

    def copied(name):
        report.get_by_role("button", name=name).click()
        expect(report.get_by_role("button", name="Copied")).to_be_visible()
        expect(report.get_by_role("button", name=name)).to_be_visible()
        return page.evaluate("navigator.clipboard.readText()")

    assert copied("Copy passage") == "Bananas are healthy.\n(report, report.pdf, page 2)"
    page.goto(copied("Copy link"))
    expect(page.locator("#results h2")).to_have_text(["report"], timeout=60_000)
    expect(page.locator("#results mark", has_text="healthy")).to_be_visible(timeout=60_000)
    expect(page.locator(".where")).to_have_text("report.pdfpage 2")
    page.get_by_role("button", name="All results").click()
    expect(page.locator("#results > li")).to_have_count(4)
    page.goto(f"{many}/?index=places&q=fruit")
    expect(page.get_by_role("button", name="Copy link").first).to_be_visible(timeout=60_000)
    assert page.get_by_role("link", name="Open").count() == 0
    context.close()


def test_weak_results_are_folded(browser, url):
    found = []

    def weaken(route):
        answer = route.fetch()
        body = answer.json()
        for result in body["results"][0][found[0] :]:
            result["weak"] = True
        route.fulfill(response=answer, json=body)

    page = browser.new_page()
    page.route("**/search", weaken)
    shown = page.locator("#results > li:visible")
    for strong in (1, 0):
        found[:] = [strong]
        page.goto(f"{url}/?q=planets")
        expect(page.locator("#results > li")).to_have_count(4, timeout=60_000)
        expect(shown).to_have_count(strong)
        expect(page.locator("#status")).to_contain_text(
            "1 answers, 3 match weakly" if strong else "Nothing matches well; the nearest"
        )
        page.locator("#weak").click()
        expect(shown).to_have_count(4)
        assert len(set(ids(page))) == 4
    page.close()


def test_colours_are_chosen_and_kept(browser, url):
    page = browser.new_page(color_scheme="light")
    page.goto(url)
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.get_by_label("Colours").select_option("dark")
    dark = page.evaluate(background)
    assert dark != light
    page.goto(f"{url}/nothing/here")
    assert page.evaluate(background) == dark
    assert page.get_by_role("link", name="Search").get_attribute("href") == "/"
    page.goto(url)
    page.get_by_label("Colours").select_option("as the system")
    assert page.evaluate(background) == light
    page.close()


def test_rows_are_a_table_and_a_page_of_a_file_has_a_thumbnail(browser, many):
    page = browser.new_page()
    page.goto(f"{many}/?index=notes&q=healthy+bananas")
    report = page.locator("#results > li", has=page.get_by_role("img", name="PDF"))
    expect(report.locator(".thumbnail canvas")).to_be_visible(timeout=60_000)
    page.goto(f"{many}/?index=prices&q=price+of+plums")
    table = page.locator("#results .text table").first
    expect(table.locator("th")).to_have_text(["fruit", "price"], timeout=60_000)
    expect(table.locator("tr", has_text="plums").locator("td")).to_have_text(["plums", "7"])
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280
    page.close()


def test_a_title_opens_its_document(browser, many):
    page = browser.new_page()
    page.goto(f"{many}/?index=long&q=healthy+fruit")
    page.locator("#results h2 a").first.click(timeout=60_000)
    expect(page.locator("#status")).to_have_text("1 document", timeout=60_000)
    expect(page.locator("#results .text")).to_have_text(LONG.strip())
    page.close()


def test_a_page_that_waits_says_for_what(browser, url):
    page = browser.new_page()
    held = []
    page.route("**/v1/indexes", lambda route: held.append(route))
    page.goto(url)
    expect(page.locator("#status")).to_have_text("Waiting for the server …")
    page.route("**/v1/indexes/records", lambda route: held.append(route))
    held[0].continue_()
    expect(page.locator("#start")).to_contain_text("Reading what records holds …", timeout=60_000)
    held[1].continue_()
    expect(page.locator("#start")).to_contain_text("records holds 4 documents", timeout=60_000)
    page.close()
