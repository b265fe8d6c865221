"""Texts that end a turn: found in the bytes of the ids as they come, wherever the borders of tokens fall."""

from __future__ import annotations

from collections.abc import Sequence

from bridle.tokens import Vocabulary


class StopTexts:
    """A control id has no text, and no stop text reaches across one. Bytes of UTF-8 that match are the text itself."""

    def __init__(self, texts: Sequence[str], vocabulary: Vocabulary) -> None:
        self._texts = {text.encode(errors="surrogatepass"): text for text in texts}
        self._vocabulary = vocabulary
        self._longest = max(map(len, self._texts), default=0)
        self._tail = b""

    def feed(self, id: int) -> str:
        """-> the stop text that `id` completes, the one that ends first; "" for none."""
        if not self._longest:
            return ""
        if id in self._vocabulary.control_ids:
            self._tail = b""
            return ""
        said = self._tail + self._vocabulary.token_bytes(id)
        self._tail = said[-(self._longest - 1) :] if self._longest > 1 else b""
        ends = [(at + len(stop), text) for stop, text in self._texts.items() if (at := said.find(stop)) >= 0]
        return min(ends)[1] if ends else ""
