"""Keep secrets of URLs out of everything that people read.

A URL is shown only where its shape leaves no doubt about what is secret in it. People put ``@``, ``/``
and ``?`` into passwords unescaped, and such a URL can be read in more than one way: then nothing but
its scheme is shown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import unquote

HIDDEN: Final = "***"
_SCHEME: Final = r"[A-Za-z][A-Za-z0-9+.\-]*://"
_HOST: Final = r"(?:[\w.\-%]+|\[[0-9A-Fa-f:.%]+\])(?::\d+)?"

_STARTS_AS_URL: Final = re.compile(_SCHEME)
# Celery joins URLs with a semicolon, and so do people who print a list.
_BETWEEN_URLS: Final = re.compile(rf"([;,]\s*)(?={_SCHEME})")
_PLACE: Final = re.compile(
    rf"(?P<scheme>{_SCHEME})(?:(?P<login>[^/#]*)@)?(?P<hosts>(?:{_HOST}(?:[;,]{_HOST})*)?)(?P<path>/[^@]*)?",
    re.DOTALL,
)
_USER: Final = re.compile(r"(?P<user>[\w.\-%]*):")
_SECRET_NAME: Final = re.compile(r"(?:pass|pwd|secret|token|key|auth|cred)[^=]*=", re.IGNORECASE)
# In a text a URL ends with a space, unless a login is still open; quotes and stops after it are not
# part of it. A login without a scheme is what is left when somebody forgot the scheme. Both are tried
# only where a word begins, so that a long text costs no more than its length.
_IN_TEXT: Final = re.compile(
    rf"""(?<![\w+.\-])(?P<url>{_SCHEME}(?:[^\s@:]*:[^@\n]*@)?\S*?)(?=['"),.:;>]*(?:\s|$))"""
    r"""|(?<!\S)(?P<user>[^\s:@/]*):(?!//|\s)\S+@"""
)


def redact(text: str) -> str:
    """The URL, or several, with each password and secret parameter hidden.

    In any other text the URLs are found and treated likewise, as well as they can be told from it.
    """
    if starts_as_url(text):
        return _redact_urls(text)
    return _IN_TEXT.sub(_redact_found, text)


def starts_as_url(text: str) -> bool:
    """Whether there is a scheme where it should be. Without one a password may be anywhere in it."""
    return _STARTS_AS_URL.match(text) is not None


def redact_all(urls: str | Sequence[str]) -> str:
    """Like `redact`, for one URL or several."""
    return redact(urls) if isinstance(urls, str) else ", ".join(redact(each) for each in urls)


def _redact_found(found: re.Match[str]) -> str:
    url = found["url"]
    return f"{found['user']}:{HIDDEN}@" if url is None else _redact_urls(url)


def _redact_urls(text: str) -> str:
    before, question_mark, query = text.partition("?")
    pieces = _BETWEEN_URLS.split(before)
    places, separators = pieces[::2], pieces[1::2]
    shown = [_redact_place(place) for place in places]
    # An @ in the query, or in some of the places only, may end a password that began further left.
    logins = sum("@" in place for place in places)
    if "@" in query or None in shown or logins not in (0, len(places)):
        return text.partition("://")[0] + "://" + HIDDEN
    joined = "".join(
        f"{place}{separator}" for place, separator in zip(shown, [*separators, ""], strict=True)
    )
    return joined + question_mark + "&".join(map(_redact_parameter, query.split("&")))


def _redact_place(url: str) -> str | None:
    """All before the query; None if it is in doubt where the login ends."""
    place = _PLACE.fullmatch(url)
    if place is None:
        return None
    login = place["login"]
    if login is None:
        return url
    # A login without a colon may be a user, or a token.
    user = _USER.match(login)
    hidden = f"{user['user']}:{HIDDEN}" if user else HIDDEN
    return f"{place['scheme']}{hidden}@{place['hosts']}{place['path'] or ''}"


def _redact_parameter(text: str) -> str:
    # Decoded first, since the name may be encoded too.
    decoded = unquote(text)
    secret = _SECRET_NAME.search(decoded)
    if secret:
        return decoded[: secret.end()] + HIDDEN
    return text if "=" in text or not text else HIDDEN
