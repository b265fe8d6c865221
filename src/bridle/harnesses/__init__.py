"""The agents. The table of built-in names; a user's own "my.module:Class" works wherever a name does."""

NAMES = {
    "mini_swe_agent": "bridle.harnesses.mini_swe_agent:MiniSweAgent",
    "claude_code": "bridle.harnesses.claude_code:ClaudeCode",
    "codex": "bridle.harnesses.codex:Codex",
    "gemini_cli": "bridle.harnesses.gemini_cli:GeminiCli",
    "qwen_code": "bridle.harnesses.qwen_code:QwenCode",
    "opencode": "bridle.harnesses.opencode:OpenCode",
    "pi": "bridle.harnesses.pi:Pi",
    "openclaw": "bridle.harnesses.openclaw:OpenClaw",
    "aider": "bridle.harnesses.aider:Aider",
    "openhands": "bridle.harnesses.openhands:OpenHands",
    "hermes": "bridle.harnesses.hermes:Hermes",
    "command": "bridle.harnesses.command:CommandHarness",
}
