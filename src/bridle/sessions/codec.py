"""The session log on disk: a magic, then frames of (length, CRC-32, msgpack record), append-only.

A frame cut off at the very end is what a crash leaves and is dropped; anything else that does not check is an error.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator

import msgspec

from bridle.errors import LogCorrupt
from bridle.sessions.records import LOG_VERSION, Opened, Record

MAGIC = b"BRIDLE\x00\x01"
_FRAME = struct.Struct("<II")
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Record)


def encode(record: Record) -> bytes:
    payload = _encoder.encode(record)
    return _FRAME.pack(len(payload), zlib.crc32(payload)) + payload


def decode(data: bytes, name: str = "session log") -> Iterator[Record]:
    """Records in order. Raises LogCorrupt with the offset of what does not check."""
    if not data.startswith(MAGIC):
        raise LogCorrupt(f"{name}: not a session log (it does not begin with {MAGIC!r})")
    at = len(MAGIC)
    while at < len(data):
        end = _frame_end(data, at)
        if end > len(data):
            return
        yield _record(data, at, end, name)
        at = end


def _frame_end(data: bytes, at: int) -> int:
    """One past the frame at `at`; past the data's end when the frame is cut off."""
    if at + _FRAME.size > len(data):
        return len(data) + 1
    length, _ = _FRAME.unpack_from(data, at)
    return at + _FRAME.size + int(length)


def _record(data: bytes, at: int, end: int, name: str) -> Record:
    _, checksum = _FRAME.unpack_from(data, at)
    payload = data[at + _FRAME.size : end]
    if zlib.crc32(payload) != checksum:
        raise LogCorrupt(f"{name}: checksum of the record at byte {at} does not match")
    try:
        record: Record = _decoder.decode(payload)
    except msgspec.DecodeError as error:
        raise LogCorrupt(f"{name}: the record at byte {at} cannot be read: {error}") from error
    if isinstance(record, Opened) and record.version != LOG_VERSION:
        raise LogCorrupt(f"{name}: log version {record.version}; this Bridle reads version {LOG_VERSION}")
    return record
