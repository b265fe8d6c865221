"""What samples tokens. The table of built-in names; a user's own "my.module:Class" works wherever a name does."""

NAMES = {
    "scripted": "bridle.engines.scripted:ScriptedEngine",
    "transformers": "bridle.engines.transformers:TransformersEngine",
}
