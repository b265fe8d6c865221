"""Wire protocols agents speak: bytes in, canonical values out, and back."""

NAMES = {
    "anthropic": "bridle.protocols.anthropic:Anthropic",
    "openai_chat": "bridle.protocols.openai_chat:OpenAIChat",
}
