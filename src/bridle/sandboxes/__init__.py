"""Where agents run and graders grade. `base` is the contract; `directories` holds what the built-in ones share."""

from __future__ import annotations

NAMES = {
    "bubblewrap": "bridle.sandboxes.bubblewrap:BubblewrapSandbox",
    "local": "bridle.sandboxes.local:LocalSandbox",
}


def default_sandbox() -> tuple[str, str]:
    """-> the name of the best sandbox that works on this machine, and why it is that one."""
    from bridle.sandboxes.bubblewrap import BubblewrapSandbox

    works, reason = BubblewrapSandbox.available()
    return ("bubblewrap", reason) if works else ("local", f"{reason}; `local` is for trusted code only")
