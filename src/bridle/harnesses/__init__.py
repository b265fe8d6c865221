"""The agents. The table of built-in names; a user's own "my.module:Class" works wherever a name does."""

NAMES = {
    "mini_swe_agent": "bridle.harnesses.mini_swe_agent:MiniSweAgent",
    "claude_code": "bridle.harnesses.claude_code:ClaudeCode",
    "command": "bridle.harnesses.command:CommandHarness",
}
