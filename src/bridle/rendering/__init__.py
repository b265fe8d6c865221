"""Messages to token ids for one model, and sampled ids back to messages. The names are forms of tool calls."""

NAMES = {
    "hermes": "bridle.rendering.tools_json:JsonCalls",
}
