"""What is shown of a result: the part that matched, its marked words, and where it is in its file."""

import pytest

from latelier.retrieve import Retriever
from latelier.retrieve.languages import language_of

FILLER = "The committee met on Tuesday and talked about the budget of the next year. "


@pytest.fixture(scope="module")
def files(tmp_path_factory, minilm):
    folder = tmp_path_factory.mktemp("files")
    (folder / "long.txt").write_text("\n".join([FILLER] * 40 + ["Bananas are a healthy fruit."] + [FILLER] * 40))
    ships = f"## Ships\n\nA **ship** crosses | the `sea` |.\n\n### Moons\n\n{FILLER * 60} The moon is far away.\n"
    (folder / "guide.md").write_text(f"# Guide\n\n{FILLER * 40}\n\n{ships}")
    (folder / "geo.py").write_text(
        'import os\n\n\ndef area(r):\n    """The area of a circle."""\n    return 3 * r * r\n'
    )
    retriever = Retriever(minilm, device="cpu")
    retriever.synchronise(folder)
    return retriever


def found(retriever, query, **options):
    results = retriever.search(query, k=1, **options)
    return results[0].id, results.excerpt(results[0])


def words_of(excerpt):
    return [excerpt.text[mark.start : mark.end] for mark in excerpt.marks]


@pytest.mark.parametrize("mode", ["vectors", "hybrid", "keywords"])
@pytest.mark.parametrize(
    ("query", "id", "place", "words", "text"),
    [
        ("healthy fruit", "long.txt", "line 41", {"healthy", "fruit"}, "Bananas are a healthy fruit."),
        ("the sea", "guide.md", "line 7", {"sea"}, "A ship crosses the sea ."),
        ("the moon", "guide.md", "Ships > Moons", {"moon"}, "The moon is far away."),
        ("a circle", "geo.py", "line 5", {"circle"}, "The area of a circle."),
    ],
)
def test_the_part_that_matched_and_its_place(files, mode, query, id, place, words, text):
    name, excerpt = found(files, query, mode=mode)
    assert (name, excerpt.place) == (id, place)
    marked = set(words_of(excerpt))
    assert words <= marked
    assert not marked & {"a", "the", "is", "are"}
    assert text in excerpt.shown()


def test_keywords_are_marked_as_the_index_finds_them(minilm):
    retriever = Retriever(minilm, device="cpu")
    retriever.add([("a", FILLER * 20 + "Ships were Searching quickly. " + FILLER * 20)], passages=False)
    _, excerpt = found(retriever, "she searches for a ship", mode="keywords")
    assert words_of(excerpt) == ["Ships", "Searching"]
    assert (excerpt.is_begun, excerpt.is_ended, excerpt.place) == (True, True, "")


def test_pooled_documents_are_marked_by_the_words_of_the_query(minilm):
    retriever = Retriever(minilm, device="cpu")
    retriever.add([("a", FILLER + "Bananas are healthy.")], pool_factor=2)
    results = retriever.search("healthy ships")
    assert words_of(results.excerpt(results[0])) == ["healthy"]


def test_printed_results_are_the_table_of_a_notebook(files):
    results = files.search("healthy fruit", k=2)
    first, second = str(results).splitlines()
    assert first.split()[:3] == ["1", f"{results[0].score:.3f}", "long.txt"]
    assert "Bananas are a healthy fruit." in first
    assert second.split()[2] == results[1].id
    assert str(results[:0]) == "[]"
    assert str(files.search("ship", filter="path = 'none'")) == "no document found"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Die Bananen sind gesund und der Mond ist weit von der Erde entfernt.", "German"),
        ("Le chat est sur la table et les enfants sont dans le jardin.", "French"),
        ("El gato está en la mesa y los niños son felices con la pelota.", "Spanish"),
        ("Il gatto è sul tavolo e i bambini sono nel giardino della casa.", "Italian"),
        ("O gato está na mesa e as crianças não são felizes com a bola.", "Portuguese"),
        ("De kat zit op de tafel en het kind is niet in de tuin.", "Dutch"),
        ("The cat is on the table, and the children are in the garden.", "English"),
        ("unhealthy fruit", None),
        ("def area(r): return r * r", None),
    ],
)
def test_the_language_of_a_text(text, language):
    assert language_of(text) == language


@pytest.mark.parametrize(
    "text",
    [
        "Warehouse,Storage temperature,Supplier\n" + "".join(f"Town {i},{i} C,Firm {i}\n" for i in range(60)),
        "double f(int n, double *s, double *d) { double c = 0; for (int i = 0; i < n; i++) { c += s[i] * d[i]; } }\n",
        "C 12.01 N 14.00 S 32.06 D 2.01\n" * 10,
        "speed 3 m/s, 4 m/s; force 2 N; 3 N m; 7 d; 8 C\n" * 5,
        "ATG C D E N S T L K M R Q\n" * 8,
        "N d2 N c3 d4 d5 c4 dxc4\n" * 10,
        "la,la,la,de,de\n" * 40,
    ],
)
def test_tables_code_and_units_are_in_no_language(text):
    assert language_of(text) is None


def test_a_search_encodes_its_query_once_however_often_it_is_printed(minilm, monkeypatch):
    retriever = Retriever(minilm, device="cpu")
    retriever.add([("a", "Bananas are a healthy fruit."), ("b", "The moon is far away.")])
    encoded = []
    encode = retriever.query_model.encode_queries

    def counted(texts, **options):
        encoded.append(texts)
        return encode(texts, **options)

    monkeypatch.setattr(retriever.query_model, "encode_queries", counted)
    results = retriever.search("healthy fruit")
    assert "fruit" in str(results)
    assert "<mark>fruit</mark>" in results._repr_html_()
    assert str(results) == str(results)
    assert encoded == [["healthy fruit"]]
    assert (results.query.text, len(results.query.vectors)) == ("healthy fruit", 4)


def test_marks_leave_out_what_is_in_most_texts(minilm):
    """The words that the model's vocabulary begins with, unless the index has them seldom, and words of most texts."""
    retriever = Retriever(minilm, device="cpu")
    retriever.add(
        [
            ("harbour", "The harbour was quiet. Rice was brought by the third ship, which went on to the market."),
            ("moon", "The moon is far away, and what they brought back was dust."),
            ("fruit", "Bananas are healthy. They are what most people bring to work."),
        ]
    )
    results = retriever.search("what did the ship bring to the market?", k=1)
    assert words_of(results.excerpt(results[0])) == ["brought", "ship", "market"]
    assert [each.word for each in results.excerpt(results[0]).words] == ["ship", "bring", "market"]
    retriever.add(f"Port {number} of the latelier company." for number in range(40))
    results = retriever.search("latelier company port 7", k=1)
    assert words_of(results.excerpt(results[0])) == ["7"]
    retriever.add([("school", "A school for sailors.")])
    retriever.add(f"Rice number {number}." for number in range(200))
    results = retriever.search("a school", k=1)
    assert words_of(results.excerpt(results[0])) == ["school"]


def test_headings_stand_apart_and_the_title_is_shown_once(minilm, tmp_path):
    (tmp_path / "kale.md").write_text("---\ntitle: Sea kale\ntags: [sea]\n---\nIt grows on shingle.\n")
    (tmp_path / "guide.md").write_text(
        "# Guide\n\nIntro.\n\n## Boats\n\nA boat is small.\n\n- oak\n- pine\n\n|a|b|\n|-|-|\n|x|y|\n"
    )
    retriever = Retriever(minilm, device="cpu")
    retriever.synchronise(tmp_path)
    (kale, guide) = (
        results.excerpt(results[0]) for results in (retriever.search(query, k=1) for query in ("shingle", "a boat"))
    )
    assert (kale.title, kale.shown(), kale.place) == ("Sea kale", "It grows on shingle.", "line 5")
    assert (guide.title, guide.shown()) == ("Guide", "Intro. · Boats · A boat is small. · oak · pine · a b · x y")
    assert kale.text[: kale.begin] == "Sea kale\nsea\n"
