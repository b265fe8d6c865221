"""Token ids to text as they arrive: a character is passed on once all of its bytes are there."""

from __future__ import annotations

import codecs

from bridle.tokens import Vocabulary


class Detokenizer:
    """Bytes that are no UTF-8 become U+FFFD, the same however the ids are cut into pieces."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, id: int) -> str:
        return self._decoder.decode(self._vocabulary.token_bytes(id))

    def flush(self) -> str:
        """What an unfinished character leaves; the next id starts afresh."""
        return self._decoder.decode(b"", final=True)
