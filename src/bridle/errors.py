"""Every error Bridle raises on purpose: one tree, each class with its kind, whether a retry can help, an HTTP status.

Boundaries attribute (they raise the class that names whose fault it is); `gateway` maps to HTTP in one place and
`rollouts.run` records in one place. A message says what was tried, what exists, and what to do.
"""

from __future__ import annotations

from typing import ClassVar

LONGEST = 8000
"""Characters of a message: it may quote what a client sent, and a client may send megabytes."""


class BridleError(Exception):
    """Root. `kind` is the stable name written to records, `status` the HTTP status a gateway answers with."""

    kind: ClassVar[str] = "internal"
    retryable: ClassVar[bool] = False
    status: ClassVar[int] = 500

    def __init__(self, message: str) -> None:
        self.message = message if len(message) <= LONGEST else f"{message[:LONGEST]}…"
        super().__init__(self.message)


# --- what a caller of the gateway did (4xx that official SDKs do not retry) -------------------------------------------


class BadRequest(BridleError):
    """The request cannot be understood or is not allowed as it stands."""

    kind = "bad_request"
    status = 400


class PromptTooLong(BadRequest):
    """The rendered prompt leaves no room for an answer in the model's context."""

    kind = "prompt_too_long"

    def __init__(self, tokens: int, maximum: int) -> None:
        super().__init__(f"prompt is too long: {tokens} tokens > {maximum} maximum")
        self.tokens = tokens
        self.maximum = maximum


class PreviousNotFound(BadRequest):
    """The reply a request goes on from is not kept here. Clients send the whole conversation instead."""

    kind = "previous_response_not_found"


class AccessDenied(BridleError):
    """Unknown key, ended session, or a route this key may not use. 403 because clients retry 401."""

    kind = "access_denied"
    status = 403


class SessionSealed(AccessDenied):
    """The session is finished; nothing more can enter its record."""

    kind = "session_sealed"


class LimitReached(BridleError):
    """A session used up one of its limits. 403 ends every measured client at once."""

    kind = "limit_reached"
    status = 403


class NotFound(BridleError):
    kind = "not_found"
    status = 404


class Conflict(BridleError):
    """The thing to be created exists already."""

    kind = "conflict"
    status = 409


class BodyTooLarge(BridleError):
    kind = "body_too_large"
    status = 413


# --- what a user of Bridle wrote -------------------------------------------------------------------------------------


class ConfigError(BridleError):
    """A setting, a name or a file of the user's is not usable as given."""

    kind = "config"
    status = 400


class ReducerFailed(ConfigError):
    """A user's reducer raised, or gave back what are no samples of its rollout."""

    kind = "reducer_failed"


class CreditFailed(ConfigError):
    """A user's credit function raised, or did not give each sample a reward."""

    kind = "credit_failed"


class TaskError(ConfigError):
    """A task file is broken: the message names file, line and key."""

    kind = "task"


class PatchRefused(BridleError):
    """What the agent left behind cannot be taken as a patch: the agent's doing, so a grade of zero."""

    kind = "patch_refused"


class LogCorrupt(BridleError):
    """A stored session log or case file fails its own checks."""

    kind = "log_corrupt"


class TemplateError(BridleError):
    """The chat template refused the conversation or cannot be used token-exactly."""

    kind = "template"
    status = 400


# --- infrastructure --------------------------------------------------------------------------------------------------


class SeamError(BridleError):
    """Rendered ids cannot be shown to follow what is held: a fault of the renderer. Better no answer than one that
    trains behind other ids."""

    kind = "seam"


class InfrastructureError(BridleError):
    """Something outside the agent failed; a rollout that ends by it has no grade."""

    kind = "infrastructure"
    retryable = True
    status = 503


class EngineError(InfrastructureError):
    """The engine failed to answer one request."""

    kind = "engine"


class Paused(InfrastructureError):
    """Sampling is paused (the policy is being replaced) and was for longer than a call is held."""

    kind = "paused"
    status = 529


class EngineUnfit(InfrastructureError):
    """The engine cannot deliver what training needs (ids, logprobs, stop ids); no retry will change that."""

    kind = "engine_unfit"
    retryable = False
    status = 500


class SandboxError(InfrastructureError):
    kind = "sandbox"


class HarnessError(InfrastructureError):
    """An agent could not be installed or started."""

    kind = "harness"


class GraderError(InfrastructureError):
    """The grader itself failed: no grade, not a zero."""

    kind = "grader"


class WallClock(InfrastructureError):
    """A rollout, or a stage of it, ran past its time."""

    kind = "wall_clock"
