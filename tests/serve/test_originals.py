"""What an index holds, for people who browse it, and the files that documents come from."""

import pytest
from fastapi.testclient import TestClient

from latelier.errors import InvalidArgumentError
from latelier.retrieve import Retriever
from latelier.serve import Access, create_app

ADDRESS = "/v1/indexes/notes"
TEXTS = {
    "garden/kale.md": "---\ntitle: Sea kale\ntags: [sea, beach]\n---\nIt grows.\n",
    "garden/spring/peas.txt": "Peas are sown early.",
    "stars.html": "<html><head><title>Names of stars</title></head><body><p>Vega.</p><script>1</script></body></html>",
    "a.eml": "From: a@example.org\nSubject: Trip to the hills\nDate: Fri, 14 Mar 2025 23:59:00 +0100\n\nAt eight.\n",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("originals") / "files"
    for name, text in TEXTS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder.parent / "secret.txt").write_text("secret")
    (folder / ".hidden").write_text("hidden")
    (folder / "binary.dat").write_bytes(b"a\0b")
    (folder / "link.txt").symlink_to(folder.parent / "secret.txt")
    (folder / "shown.txt").symlink_to(".hidden")
    return folder


@pytest.fixture(scope="module")
def retriever(shallow, folder):
    with Retriever(shallow, device="cpu") as retriever:
        retriever.synchronise(folder)
        paths = {"up": "../secret.txt", "root": str(folder.parent / "secret.txt"), "hidden": ".hidden"}
        paths |= {"link": "link.txt", "shown": "shown.txt"}
        paths |= {"gone": "gone.txt", "binary": "binary.dat", "folder": "garden", "nul": "a\0b", "list": ["a.list"]}
        retriever.add([{"id": id, "text": "x", "metadata": {"path": path}} for id, path in paths.items()])
        yield retriever


@pytest.fixture(scope="module")
def client(retriever, folder):
    app = create_app({"notes": retriever, "other": retriever}, files={"notes": folder})
    with TestClient(app, base_url="http://localhost") as client:
        yield client


@pytest.mark.parametrize(
    ("name", "kind", "disposition", "policy"),
    [
        ("garden/kale.md", "text/plain; charset=utf-8", "inline", "default-src 'none'; script-src 'self'"),
        ("stars.html", "text/html; charset=utf-8", "inline", "sandbox; default-src 'none'"),
        ("a.eml", "application/octet-stream", "attachment", "default-src 'none'; script-src 'self'"),
        ("binary", "application/octet-stream", "attachment", "default-src 'none'; script-src 'self'"),
    ],
)
def test_a_file_is_shown_as_it_is_and_runs_nothing(client, name, kind, disposition, policy):
    answer = client.get(f"{ADDRESS}/files/{name}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == kind
    assert answer.headers["content-disposition"].startswith(disposition)
    assert answer.headers["content-security-policy"].startswith(policy)
    assert answer.text == TEXTS.get(name, "a\0b")


@pytest.mark.parametrize("id", ["up", "root", "hidden", "link", "shown", "gone", "folder", "nul", "list", "unknown"])
def test_no_file_but_those_of_the_folder_is_served(client, id):
    answer = client.get(f"{ADDRESS}/files/{id}")
    assert answer.status_code == 404
    assert "secret" not in answer.text


def test_files_are_served_where_the_owner_allows_it_and_to_readers(retriever, folder, client):
    answer = client.get("/v1/indexes/other/files/stars.html")
    assert (answer.status_code, "--serve-files" in answer.text) == (404, True)
    listed = {each["name"]: each["serves_files"] for each in client.get("/v1/indexes").json()}
    assert listed == {"notes": True, "other": False}
    with pytest.raises(InvalidArgumentError, match="nope"):
        create_app({"notes": retriever}, files={"nope": folder})
    with pytest.raises(InvalidArgumentError, match="gone"):
        create_app({"notes": retriever}, files={"notes": folder / "gone"})
    app = create_app({"notes": retriever}, files={"notes": folder}, access=Access(read_token="r" * 16))
    with TestClient(app, base_url="http://localhost") as closed:
        assert closed.get(f"{ADDRESS}/files/stars.html").status_code == 401
        assert closed.get(f"{ADDRESS}/files/stars.html", headers={"authorization": f"Bearer {'r' * 16}"}).is_success


def test_kinds_folders_and_files_are_counted_among_what_a_filter_selects(client):
    whole = client.post(f"{ADDRESS}/browse", json={}).json()
    kinds = {each["value"]: each["documents"] for each in whole["types"]}
    assert kinds == {"md": 1, "txt": 6, "html": 1, "eml": 1, "dat": 1, "list": 1}
    assert {"value": "garden/", "documents": 2} in whole["folders"]
    (tags,) = (each for each in whole["fields"] if each["field"] == "tags")
    assert (tags["has_lists"], [each["value"] for each in tags["values"]]) == (True, ["beach", "sea"])
    asked = {"filter": "instr(path, ?) = 1", "parameters": ["garden/"], "folder": "garden/", "field": "tags"}
    garden = client.post(f"{ADDRESS}/browse", json=asked).json()
    assert [each["value"] for each in garden["files"]] == ["garden/kale.md", "garden/spring/peas.txt"]
    assert garden["folders"] == [{"value": "garden/spring/", "documents": 1}]
    assert [each["field"] for each in garden["fields"]] == ["tags"]
    assert client.post(f"{ADDRESS}/browse", json={"filter": "zzz = 1"}).status_code == 422


def test_an_index_tells_its_newest_documents_and_questions_of_different_files(client, shallow):
    described = client.get(ADDRESS).json()
    assert {each["id"] for each in described["newest"]} == set(TEXTS)
    assert all(each["modified"].endswith("Z") for each in described["newest"])
    assert "What does “Names of stars” say?" in described["examples"]
    with Retriever(shallow, device="cpu") as bare:
        bare.add([("a", "Where is the key?"), ("b", "The moon is far away.")])
        with TestClient(create_app({"notes": bare}), base_url="http://localhost") as client:
            described = client.get(ADDRESS).json()
    assert described["newest"] == [
        {"id": "b", "title": "The moon is far away.", "modified": None},
        {"id": "a", "title": "Where is the key?", "modified": None},
    ]
    assert set(described["examples"]) == {"Where is the key?", "What does “The moon is far away” say?"}


def test_an_address_that_is_none_is_a_page_for_people_and_json_for_programs(client):
    shown = client.get("/nothing", headers={"accept": "text/html,*/*"})
    assert (shown.status_code, shown.headers["content-type"].split(";")[0]) == (404, "text/html")
    assert 'href="/"' in shown.text
    for path, accept in (("/nothing", "*/*"), ("/v1/nothing", "text/html")):
        assert client.get(path, headers={"accept": accept}).json()["error"]["type"] == "InvalidRequest"
