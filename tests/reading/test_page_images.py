import io
import re
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from image_models import save_image_model
from latelier.errors import InvalidArgumentError, LatelierError
from latelier.indexes import IVF, Flat
from latelier.models import load
from latelier.reading.images import Picture, load_image
from latelier.retrieve import Retriever, read_documents

GRADIENT = Image.fromarray(np.linspace(0, 255, 64 * 96 * 3).reshape(64, 96, 3).astype("uint8"))


def encoded(format, image=GRADIENT, **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


def png_of(width, height, megabytes=0):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    zeros = b"".join([packer.compress(bytes(1 << 20)) for _ in range(megabytes)]) + packer.flush()
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zeros) + chunk(b"IEND", b"")


def pdf_of(*sizes, texts=(), pages=0, extra=b""):
    sizes = sizes or ((300, 200),) * len(texts) or ((100, 100),)
    kids = b"3 0 R " * pages or b" ".join(b"%d 0 R" % (3 + i) for i in range(len(sizes)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", b"<</Type/Pages/Count %d/Kids[%s]>>" % (pages or len(sizes), kids)]
    font = b"/Resources<</Font<</F1<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>>>/Contents %d 0 R"
    shown = [font % (3 + len(sizes) + i) for i in range(len(texts))] or [b""] * len(sizes)
    for size, content in zip(sizes, shown, strict=True):
        objects.append(b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 %d %d]%s>>" % (*size, content))
    for drawn in (b"BT /F1 12 Tf 20 100 Td (%s) Tj ET" % text.encode() for text in texts):
        objects.append(b"<</Length %d>>stream\n%s\nendstream" % (len(drawn), drawn))
    data, places = b"%PDF-1.4\n", []
    for number, content in enumerate(objects, start=1):
        places.append(len(data))
        data += b"%d 0 obj\n%s\nendobj\n" % (number, content)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    end = b"trailer<</Size %d/Root 1 0 R%s>>\nstartxref\n%d\n%%%%EOF" % (count, extra, len(data))
    return data + b"xref\n0 %d\n0000000000 65535 f \n%s" % (count, table) + end


ENCRYPTED = b"/Encrypt<</Filter/Standard/V 1/R 2/P -4/O(%s)/U(%s)>>/ID[(a)(a)]" % (b"o" * 32, b"u" * 32)


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
@pytest.mark.parametrize(
    ("name", "data", "page", "fact"),
    [
        ("bomb.png", png_of(20_000, 20_000, 20), None, "has more than 89,478,485 pixels"),
        ("large.png", png_of(10_000, 9_000), None, "has 10,000 x 9,000 pixels; expected at least 8 a side"),
        ("dot.png", encoded("PNG", Image.new("RGB", (1, 1))), None, "has 1 x 1 pixels; expected at least 8 a side"),
        (
            "thin.png",
            encoded("PNG", Image.new("L", (9, 2000))),
            None,
            "has 9 x 2,000 pixels; expected at least 8 a side, at most 100 times as long as wide",
        ),
        ("cut.png", encoded("PNG")[:300], None, "is damaged: image file is truncated"),
        ("cut.jpg", encoded("JPEG")[:800], None, "is damaged: image file is truncated"),
        ("missing.png", png_of(100, 100), None, "is damaged: image file is truncated"),
        ("text.png", b"no picture", None, "is no picture in PNG"),
        ("vector.pdf.eps", b"%!PS-Adobe-3.0 EPSF-3.0", None, "is no picture in PNG"),
        ("many.pdf", pdf_of(pages=100_000), 1, "has 100,000 pages; expected at most 10,000"),
        ("locked.pdf", pdf_of(extra=ENCRYPTED), 1, "is damaged, encrypted, or no PDF"),
        ("text.pdf", b"no PDF", 1, "is damaged, encrypted, or no PDF"),
        ("strip.pdf", pdf_of((14_400, 10)), 1, "has 3,000 x 3 pixels; expected at least 8 a side"),
        ("pages.pdf", pdf_of(), 2, "received page=2; expected 1 to 1"),
        ("pages.pdf", pdf_of(), None, "received no page; expected 1 to 1"),
    ],
)
def test_what_cannot_be_shown_to_a_model_is_an_error_that_names_the_file(tmp_path, name, data, page, fact):
    path = tmp_path / name
    path.write_bytes(data)
    for read in (Picture.of, load_image):
        with pytest.raises(
            InvalidArgumentError, match=re.escape(f"{path}: it {fact}".replace("it received", "received"))
        ):
            read(path, page)


@pytest.mark.parametrize(
    ("data", "size", "corner"),
    [
        (png_of(16, 16, 50), (16, 16), (0, 0, 0)),  # more packed data than pixels
        (encoded("JPEG", Image.new("CMYK", (20, 10), (0, 255, 255, 0))), (20, 10), (254, 0, 0)),
        (encoded("PNG", Image.new("I;16", (20, 10), 51 * 257)), (20, 10), (51, 51, 51)),
        (encoded("TIFF", Image.new("F", (20, 10), 0.2)), (20, 10), (51, 51, 51)),
        (encoded("PNG", Image.new("RGB", (20, 10), (9, 9, 9)).quantize(2), transparency=0), (20, 10), (255, 255, 255)),
        (encoded("WEBP", Image.new("RGBA", (20, 10), (0, 0, 0, 0))), (20, 10), (255, 255, 255)),
        (encoded("TIFF", Image.new("1", (20, 10), 1)), (20, 10), (255, 255, 255)),
        (encoded("GIF", Image.new("L", (20, 10), 9), save_all=True, append_images=[GRADIENT]), (20, 10), (9, 9, 9)),
    ],
)
def test_pictures_of_every_mode_become_rgb(data, size, corner):
    image = Picture.of(data).load()
    assert (image.mode, image.size) == ("RGB", size)
    assert np.abs(np.subtract(image.getpixel((0, 0)), corner)).max() <= 1


def test_pictures_are_turned_as_their_camera_says():
    exif = Image.Exif()
    exif[0x112] = 6
    picture = Picture.of(encoded("PNG", exif=exif))
    assert (picture.metadata["width"], picture.metadata["height"]) == (64, 96)
    assert picture.load().getpixel((63, 0)) == GRADIENT.getpixel((0, 0))


def test_a_page_is_rendered_in_bounds(tmp_path):
    (tmp_path / "a.pdf").write_bytes(pdf_of((595, 842), (14_400, 7_200)))
    pages = [Picture.of(tmp_path / "a.pdf", page) for page in (1, 2)]
    assert [page.load().size for page in pages] == [(1240, 1755), (3000, 1500)]
    assert {**pages[1].metadata, "checksum": ""} == {
        "image": str(tmp_path / "a.pdf"),
        "page": 2,
        "width": 3000,
        "height": 1500,
        "checksum": "",
    }


def test_a_stored_picture_is_read_only_if_it_is_the_same(tmp_path):
    path = tmp_path / "a.png"
    GRADIENT.save(path)
    stored = Picture.of(path).metadata
    assert load_image(stored).tobytes() == GRADIENT.tobytes()
    GRADIENT.rotate(180).save(path)
    with pytest.raises(LatelierError, match=r"a\.png' has changed since it was stored"):
        load_image(stored)
    path.unlink()
    with pytest.raises(LatelierError, match=r"a\.png' is not there any more"):
        load_image(stored)
    with pytest.raises(LatelierError, match="stored without the file"):
        load_image(Picture.of(GRADIENT).metadata)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 140, 3), dtype="uint8"))


@pytest.fixture(scope="session")
def pages_folder(tmp_path_factory):
    return save_image_model("colqwen2", tmp_path_factory.mktemp("models") / "colqwen2")


@pytest.fixture(scope="session")
def pages(pages_folder):
    return load(pages_folder, device="cpu")


def test_pictures_are_added_searched_updated_and_removed_beside_texts(pages, tmp_path):
    NOISE.save(tmp_path / "a.png")
    for index in (Flat(), IVF()):
        retriever = Retriever(pages, index)
        records = [{"id": f"p{year}", "image": NOISE.rotate(year), "year": year} for year in range(40)]
        retriever.add([*records, ("text", "A table of profits")], pool_factor=2)
        assert sorted(hit.id for hit in retriever.search("red chart", k=9, filter="year < 3")) == ["p0", "p1", "p2"]
        [stored] = retriever.search("red chart", filter="year = 7")
        assert (stored.text, stored.metadata["width"], "image" in stored.metadata) == ("", 140, False)
        retriever.update([{"id": "p7", "image": tmp_path / "a.png", "text": "Annual report"}])
        assert retriever.search("annual", mode="keywords")[0].metadata["image"] == str(tmp_path / "a.png")
        assert retriever.search(NOISE.rotate(5), k=1)[0].id == "p5"
        half = len(pages.encode_document(NOISE)) // 2
        assert abs(len(retriever.index.get_embeddings("p7")[0]) - half) <= 1
        retriever.remove("p7")
        assert (len(retriever), [hit.id for hit in retriever.search("A table of profits", k=1)]) == (40, ["text"])


def test_a_picture_is_one_passage(pages):
    retriever = Retriever(pages)
    retriever.add([{"id": "a", "image": NOISE, "text": "words " * 99}, ("b", "words " * 99)], passages=60)
    assert [len(record.passages) > 1 for record in retriever.documents.get(["a", "b"])] == [False, True]
    retriever.update([("a", "text"), {"id": "b", "image": NOISE}])
    retriever.update([{"id": "b", "image": NOISE}])  # a chunk without a text
    assert len(retriever) == 2


def test_a_batch_holds_no_more_tokens_than_its_budget(pages, monkeypatch):
    shapes = []
    hook = pages[0].register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0]["input_ids"].shape)))
    sides = [30, 200, 60, 110, 30, 150, 40] * 3
    encoded = pages.encode_document([NOISE.resize((side, side)) for side in sides])
    hook.remove()
    assert sum(rows for rows, _ in shapes) == len(sides) > 2 * len(shapes)
    assert max(rows * tokens for rows, tokens in shapes) <= 512
    assert len({len(vectors) for vectors, side in zip(encoded, sides, strict=True) if side == 30}) == 1


def test_a_text_that_is_an_address_or_a_path_of_a_picture_is_a_text(pages, tmp_path):
    NOISE.save(tmp_path / "a.png")
    for text in ("http://127.0.0.1:9/a.png", "data:image/png;base64,AAAA", str(tmp_path / "a.png")):
        assert pages.tokens(text)[3:-11] == pages.tokenizer.tokenize(f"Query: {text}")[3:]


def test_models_of_texts_say_that_they_read_no_pictures(small):
    retriever = Retriever(small)
    retriever.add([{"id": "a", "text": "A chart.", "image": "https://example.com/a.png"}])
    assert retriever.index.get(["a"])[0].metadata == {"image": "https://example.com/a.png"}
    for image in ("a.png", NOISE):
        with pytest.raises(InvalidArgumentError, match=r"documents\[1\] is a picture, and this model reads texts only"):
            retriever.add([("b", "text"), {"id": "c", "image": image}])

    with pytest.raises(InvalidArgumentError, match="the query is a picture, and this model reads texts only"):
        retriever.search(NOISE)


def test_faulty_pictures_are_named_and_earlier_ones_stay(pages):
    retriever = Retriever(pages)
    for image, fact in [("https://x.y/a.png", "is an address"), (b"no picture", "is no picture"), ("z.png", "no file")]:
        with pytest.raises(InvalidArgumentError, match=rf"documents\[2\].*{fact}"):
            retriever.update([("a", "text"), {"id": "b", "image": NOISE}, {"id": "c", "image": image}], chunk_size=1)
        assert len(retriever) == 2


def test_folders_are_kept_up_to_date(pages, tmp_path):
    folder = tmp_path / "scans"
    folder.mkdir()
    NOISE.save(folder / "a.png")
    (folder / "b.pdf").write_bytes(pdf_of((200, 300), (14_400, 10), (300, 200)))
    (folder / "c.jpg").write_bytes(encoded("JPEG")[:800])
    retriever = Retriever(pages)

    with pytest.warns(UserWarning, match="skipped 2 files"):
        report = retriever.synchronise(read_documents(folder, pages="images"))
    assert (report.new, retriever.index.ids()) == (3, ["a.png", "b.pdf#1", "b.pdf#3"])
    faults = [("b.pdf", "page 2: it has 3,000 x 3 pixels"), ("c.jpg", "it is damaged")]
    assert [
        (each.path, each.message[: len(fact)]) for each, (_, fact) in zip(report.skipped, faults, strict=True)
    ] == faults
    page = retriever.index.get(["b.pdf#3"])[0].metadata
    assert (page["path"], page["page"], page["image"]) == ("b.pdf", 3, str(folder / "b.pdf"))
    (folder / "b.pdf").write_bytes(pdf_of((200, 300)))
    (folder / "a.png").unlink()
    GRADIENT.save(folder / "c.jpg")
    with pytest.warns(UserWarning, match=r"b.pdf: .*kept until the next run"):
        retriever.synchronise(read_documents(folder, pages="images"))
    retriever.synchronise(read_documents(folder, pages="images"))
    assert retriever.index.ids() == ["b.pdf#1", "c.jpg"]
    retriever.synchronise(read_documents(folder / "b.pdf", pages="images"))
    assert len(retriever) == 2
