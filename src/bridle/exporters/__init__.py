"""Formats samples are written in. A user's own "my.module:Class" works wherever a name of this table does."""

NAMES = {
    "jsonl": "bridle.exporters.jsonl:JsonlExporter",
}
