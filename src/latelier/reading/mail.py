"""Mails and mailboxes: their texts, the mails that they forward, and the attachments of kinds that are read."""

from __future__ import annotations

import base64
import quopri
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from mimetypes import guess_extension
from pathlib import PurePosixPath
from typing import Any

from latelier.errors import EmptyTextError, InvalidArgumentError, LatelierError
from latelier.reading.content import Content, charset, counted, decoded
from latelier.reading.web_pages import of_markup
from latelier.utils.checks import cut

# Returns what a file of this name holds; raises a `LatelierError` if it is of no kind that is read.
ReadAttachment = Callable[[bytes, str], Iterable[Content]]
_LONGEST_DATE = 100
_LONGEST_PARAMETERS = 2000  # of a header whose parts the standard library takes time of the second power for
_DEEPEST_PART = 30
_DEEPEST_MAIL = 5  # mails in mails
# A plain text that is so much shorter than the page beside it says that there is a page.
_LEAST_OF_PAGE = 0.3


def read_mail(data: bytes, read: ReadAttachment) -> Iterator[Content]:
    """Yield the text of a mail; `read` reads its attachments."""
    yield _Mail(data, read).content()


def read_mailbox(data: bytes, read: ReadAttachment) -> Iterator[Content]:
    """Yield the mails of a mailbox."""
    parts = re.split(rb"^From [^\n]*\n(?=>?[\w-]+[: ])", data, flags=re.MULTILINE)[1:]
    for number, part in enumerate(parts):
        mail = _Mail(re.sub(rb"^>(?=>*From )", b"", part, flags=re.MULTILINE), read)
        own = str(mail.message["message-id"] or number).strip("<> \t\r\n")
        yield mail.content()._replace(own=own)


class _Mail:
    """A mail, as its parts are looked at: its texts, and what of it is not read."""

    def __init__(self, data: bytes, read: ReadAttachment) -> None:
        from email import message_from_bytes

        self.message: Any = message_from_bytes(data, policy=_mail_policy())
        self._read = read
        self._texts: list[str] = []
        self._names: list[str] = []  # of attachments that are not read
        self._kinds: list[str] = []  # of what is not read
        self._unread: list[str] = []

    def content(self) -> Content:
        """Return the text of the mail, with sender, receivers and date."""
        self._take(self.message, 0)
        if self._names:
            self._texts.append(f"Attachments: {', '.join(self._names)}")
        headers = _headers(self.message)
        title = headers.pop("subject", "")
        text = "\n\n".join(filter(None, (each.strip() for each in self._texts)))
        return Content(text, title, headers, unread=(*counted(self._kinds), *self._unread))

    def _take(self, part: Any, depth: int) -> None:
        """Take what a part holds; `depth`: in so many mails."""
        kind = part.get_content_type()
        if kind == "message/rfc822" and part.is_multipart():
            self._take_forwarded(part.get_payload()[0], depth + 1)
        elif kind == "message/delivery-status" and part.is_multipart():
            self._texts += [
                "\n".join(f"{name}: {value}" for name, value in each.items()) for each in part.get_payload()
            ]
        elif kind == "multipart/alternative" and part.is_multipart():
            self._take_one_of(part, depth)
        elif part.is_multipart():
            for each in part.get_payload():
                self._take(each, depth)
        elif kind == "text/calendar":
            self._texts.append(_event(_text_of(part)))
        elif part.get_filename() or part.get_content_disposition() == "attachment" or not kind.startswith("text/"):
            self._take_attachment(part)
        else:
            self._texts.append(_text_of(part))

    def _take_forwarded(self, message: Any, depth: int) -> None:
        if depth > _DEEPEST_MAIL:
            self._kinds.append("forwarded mail")
            return
        headers = _headers(message)
        self._texts.append(f"# {headers.pop('subject', '') or 'Forwarded mail'}")
        self._texts.append("\n".join(f"{name.capitalize()}: {value}" for name, value in headers.items()))
        self._take(message, depth)

    def _take_one_of(self, alternatives: Any, depth: int) -> None:
        """Take the plain form of a text that has several, or its page if that says much more; and what is no text."""
        leaves = [part for part in alternatives.walk() if not part.is_multipart()]
        plain = next((part for part in leaves if part.get_content_type() == "text/plain"), None)
        page = next((part for part in leaves if part.get_content_type() == "text/html"), None)
        texts = ["" if part is None else _text_of(part) for part in (plain, page)]
        self._texts.append(texts[0] if len(texts[0]) >= _LEAST_OF_PAGE * len(texts[1]) else texts[1])
        for part in leaves:
            if part is not plain and part is not page:
                self._take(part, depth)

    def _take_attachment(self, part: Any) -> None:
        kind = part.get_content_type()
        if kind in _SIGNATURES:
            return
        name = _header(str(part.get_filename() or f"{kind.replace('/', '.')}{guess_extension(kind) or ''}"))
        name = PurePosixPath(name.replace("\\", "/")).name or "attachment"
        media = _MEDIA.get(part.get_content_maintype())
        if media:
            self._names.append(name)
            self._kinds.append(media)
            return
        try:
            contents = list(self._read(part.get_payload(decode=True) or b"", name))
        except EmptyTextError:
            self._names.append(name)
        except LatelierError as error:
            self._names.append(name)
            self._unread.append(f"attachment {name} ({cut(error.fact, 80).rstrip('.')})")
        else:
            for content in contents:
                self._texts += [f"# {name}", content.text]
                self._unread += [f"{each} of {name}" for each in content.unread]


_SIGNATURES = frozenset({"application/pgp-signature", "application/pkcs7-signature", "application/x-pkcs7-signature"})
_MEDIA = {"image": "picture", "audio": "recording", "video": "video"}
_EVENT = re.compile(r"^(SUMMARY|LOCATION|DTSTART|DTEND|ORGANIZER|DESCRIPTION)(?:;[^:\n]*)?:(.*)", re.MULTILINE)


def _event(text: str) -> str:
    """Return what an entry of a calendar says: what, where, when, and of whom."""
    begin = max(text.find("BEGIN:VEVENT"), 0)
    unfolded = re.sub(r"\r?\n[ \t]", "", text[begin:])
    lines = [f"{found[1].capitalize()}: {found[2].strip()}" for found in _EVENT.finditer(unfolded)]
    return re.sub(r"\\([,;\\])", r"\1", "\n".join(lines).replace("\\n", "\n"))


def _headers(message: Any) -> dict[str, str]:
    """Return the sender, the receivers, the subject and the date of a mail."""
    from email.utils import parsedate_to_datetime

    found = {name: _header(str(message[name])) for name in ("from", "to", "subject") if message[name]}
    with suppress(ValueError, TypeError, IndexError, OverflowError):  # of a date in no known form
        found["date"] = parsedate_to_datetime(str(message["date"])[:_LONGEST_DATE]).isoformat()
    return found


@cache
def _mail_policy() -> Any:
    """Return how mail is read: headers as they are, without those that are too long, and parts to a limited depth."""
    from email.message import Message
    from email.policy import Compat32

    class Part(Message):
        depth = 0

        def attach(self, payload: Any) -> None:
            payload.depth = self.depth + 1
            if payload.depth > _DEEPEST_PART:
                raise InvalidArgumentError(f"its parts are nested more than {_DEEPEST_PART} deep.")
            super().attach(payload)

    class Headers(Compat32):
        def header_source_parse(self, sourcelines: Any) -> tuple[str, str]:
            name, value = super().header_source_parse(sourcelines)
            if name.lower().startswith("content-"):
                value = value[:_LONGEST_PARAMETERS]
            return name, value

        def header_fetch_parse(self, name: str, value: Any) -> Any:
            return value  # bytes that are no ASCII as surrogates

    return Headers(message_factory=Part)


# Words of another encoding in a header, and the white space between two of them.
_ENCODED = re.compile(r"=\?([^?\s]*)\?([bq])\?([^?\s]*)\?=(?:\s+(?==\?[^?\s]*\?[bq]\?[^?\s]*\?=))?", re.IGNORECASE)


def _header(value: str) -> str:
    """Return the text of a header: on one line, with its encoded words decoded."""
    text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return _ENCODED.sub(_decoded_word, " ".join(text.split()))


def _decoded_word(found: re.Match[str]) -> str:
    encoding = charset(found[1].partition("*")[0])
    try:
        if found[2].lower() == "b":
            data = base64.b64decode(found[3] + "==")
        else:
            data = quopri.decodestring(found[3], header=True)
        return data.decode(encoding or "utf-8", "replace")
    except ValueError:  # of base64
        return found[0]


def _text_of(part: Any) -> str:
    payload = part.get_payload(decode=True) or b""
    try:
        text = payload.decode(charset(part.get_content_charset()) or "utf-8")
    except (LookupError, UnicodeDecodeError):
        text = decoded(payload.replace(b"\0", b""))
    if part.get_content_type() == "text/html":
        return of_markup(text).text
    return text
