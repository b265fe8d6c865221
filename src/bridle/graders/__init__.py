"""What turns a finished workspace into a reward. The table of built-in names; a user's own "my.module:Class" works
wherever a name does."""

NAMES = {"command": "bridle.graders.command:CommandGrader"}
