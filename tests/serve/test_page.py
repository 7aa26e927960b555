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
    }
    for name, documents in contents.items():
        lengths = {"max_length_query": 6} if name == "cut" else {}
        with Retriever(shallow, folder / name, device="cpu", model_options=lengths) as retriever:
            passages = 64 if name == "long" else None
            retriever.add(documents, pool_factor=2 if name == "pooled" else 1, passages=passages)
    options = ("--model", shallow, "--device", "cpu", "--no-log", "--link-prefix", "https://example.org/of?me=1&at=")
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
    names = ["queue", "encode", "search", "read", "network", "highlights"]
    times = page.locator("#times li")
    expect(times).to_have_text([re.compile(rf"^{name} \d+\.\d ms$") for name in names])
    page.select_option("#mode", "keywords")
    expect(times).to_have_count(4)
    assert [time.split()[0] for time in times.all_text_contents()] == ["queue", "search", "read", "network"]


def test_filters_come_from_the_fields_and_from_values_that_are_shown(page):
    search(page, "planets")
    page.get_by_role("button", name="kind: sky").first.click()
    expect(page.locator("#status")).to_contain_text("2 documents in")
    assert set(ids(page)) == {"moon", "mars"}
    page.locator("#filters summary").click()
    page.click("#add-condition")
    condition = page.locator("#conditions li").nth(1)
    assert condition.locator("select").first.locator("option").all_inner_texts() == ["isbn", "kind", "ripe", "year"]
    condition.locator("select").first.select_option("year")
    condition.locator("select").nth(1).select_option(">")
    condition.locator("input").fill("2021")
    expect(page.locator("#status")).to_contain_text("1 document in")
    assert ids(page) == ["mars"]
    condition.get_by_role("button").click()
    expect(page.locator("#status")).to_contain_text("2 documents in")


def test_filters_offer_the_values_of_fields_with_counts_and_limits(page, many):
    page.goto(f"{many}/?index=places&q=planets&k=20")
    items = page.locator("#results > li")
    expect(items).to_have_count(14, timeout=60_000)
    page.locator("#filters summary").click()
    odd = page.locator("#facets").get_by_role("button", name="odd 1", exact=True)
    odd.click()
    expect(items).to_have_count(1)
    expect(odd).to_have_attribute("aria-pressed", "true")
    odd.click()
    expect(items).to_have_count(14)
    page.get_by_label("changed to").fill("2024-02-03")
    page.get_by_label("changed to").blur()
    expect(page.locator("#results h2")).to_have_text(["A healthy report"])
    page.get_by_label("changed to").fill("2024-02-02")
    page.get_by_label("changed to").blur()
    expect(page.locator("#status")).to_have_text("No document found.")
    assert ids(page) == []


def test_the_first_screen_offers_searches_and_back_and_forward_restore_them(page):
    page.locator("#start").get_by_role("button", name="Bananas are healthy").click()
    expect(page.locator("#results h2").first).to_have_text("fruit", timeout=60_000)
    page.fill("#query", "planets")
    page.keyboard.press("Enter")
    expect(page.locator("#results h2").first).to_have_text("mars", timeout=60_000)
    page.go_back()
    expect(page.locator("#results h2").first).to_have_text("fruit", timeout=60_000)
    assert page.input_value("#query") == "Bananas are healthy"
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
    expect(code.locator(".where")).to_have_text("line 41")
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
    page.close()


def test_a_search_that_finds_nothing_offers_another(page):
    search(page, "planets")
    page.locator("#filters summary").click()
    page.click("#add-condition")
    page.locator("#conditions input").fill("nothing is of this kind")
    page.fill("#query", "planets")
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
    page.locator("h1").click()
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
    page.locator("#filters summary").click()
    expect(page.locator("#facets button")).to_have_text(["tag 9 10"], timeout=60_000)
    page.click("#add-condition")
    page.get_by_role("combobox", name="Value", exact=True).fill("TAG 3")
    values = page.locator("#conditions datalist option")
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


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1000, 360])
def test_assistive_technology_finds_nothing_to_complain_about(browser, url, scheme, width):
    page = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 800})
    page.goto(f"{url}/?q=planets")
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)
    page.get_by_role("button", name="Heat map").first.click()
    expect(page.locator(".heat")).to_be_visible()
    page.locator("#filters summary").click()
    expect(page.locator("#facets button").first).to_be_visible()
    page.locator("#why-not summary").click()
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth") <= width  # nothing is wider than the screen
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
    row, found = page.locator("#token-row"), page.locator("#results h2")
    expect(row).to_be_visible()
    page.fill("#token", "w" * 20)
    page.keyboard.press("Enter")
    expect(page.locator("#status")).to_have_class("error")
    page.fill("#token", "r" * 20)
    page.keyboard.press("Enter")
    expect(found).to_have_text(["moon"], timeout=60_000)
    expect(row).to_be_hidden()
    expect(page.locator("#query")).to_be_focused()
    expect(page.locator("#conditions li")).to_have_count(1)
    page.evaluate("document.getElementById('token').dispatchEvent(new Event('change'))")  # as a second token does
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
        page.get_by_role("button", name="Remove this filter").click()
        expect(found).to_have_count(count, timeout=60_000)
    assert found.count() == count


def test_values_that_no_filter_names_are_not_offered_and_large_numbers_are_typed(page, many):
    page.goto(f"{many}/?index=values&q=planets")
    odd = page.locator("#results > li", has=page.locator("h2", has_text="odd")).locator(".metadata")
    expect(odd.get_by_role("button")).to_have_text(["isbn: 3"], timeout=60_000)
    assert set(odd.locator("span").all_text_contents()) == {"id: 5", "text: other", "lines: a\nb"}
    page.goto(f"{many}/?index=numbers&q=planets")
    page.locator("#filters summary").click()
    page.click("#add-condition")
    condition = page.locator("#conditions li")
    condition.locator("select").first.select_option("large")
    condition.locator("input").fill("100000000000000000000")
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
    expect(page.locator("#times")).to_contain_text("highlights", timeout=60_000)
    expect(page.locator("#status")).to_contain_text("1 document in")
    assert page.locator("#results mark").count() == 0
    page.select_option("#index", "whole")
    expect(page.locator("#results li mark").first).to_be_visible(timeout=60_000)
