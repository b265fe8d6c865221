"""Wire protocols agents speak: bytes in, canonical values out, and back."""

NAMES = {
    "anthropic": "bridle.protocols.anthropic:Anthropic",
    "openai_chat": "bridle.protocols.openai_chat:OpenAIChat",
    "gemini": "bridle.protocols.gemini:Gemini",
    "openai_responses": "bridle.protocols.openai_responses:OpenAIResponses",
}
