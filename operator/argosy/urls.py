"""URLs as conditions and logs may show them."""

import re

_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")
"""`user:password@` of a URL. The at sign of `hf://org/name@revision` comes after a slash."""


def hide_credentials(text: str) -> str:
    """Cut user and password out of every URL of a text."""
    return _USER_INFO.sub("", text)
