"""Settings to running parts: the one place where families meet."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from bridle import __version__
from bridle.config import Settings
from bridle.decoding import decode
from bridle.engines import NAMES as ENGINES
from bridle.engines.base import Engine
from bridle.engines.script import Script, Thread, load
from bridle.engines.scripted import Actor
from bridle.errors import ConfigError, TaskError
from bridle.gateway.client import GatewayClient
from bridle.gateway.server import serve
from bridle.graders import NAMES as GRADERS
from bridle.graders.base import Grader
from bridle.harnesses import NAMES as HARNESSES
from bridle.harnesses.base import Harness
from bridle.harnesses.install import default_cache
from bridle.registry import resolve
from bridle.rendering.base import Renderer
from bridle.rendering.template import load_renderer
from bridle.rendering.tiny import make_tokenizer
from bridle.rollouts.run import Agent, MakeSandbox, Services
from bridle.samples import BUILDERS
from bridle.samples.credit import advantages
from bridle.sandboxes import NAMES as SANDBOXES, default_sandbox
from bridle.sandboxes.base import Mount, Sandbox, SandboxConfig
from bridle.sandboxes.owner import reap
from bridle.tasks.base import Spec, Task
from bridle.tokens import Vocabulary
from bridle.verify.report import warnings
from bridle.verify.verify import verify

DEFAULT_HARNESS = "mini_swe_agent"
Log = Callable[[str], None]


@asynccontextmanager
async def services(settings: Settings, tasks: Sequence[Task], directory: Path, log: Log) -> AsyncIterator[Services]:
    """Everything rollouts need, started: engine, gateway, the installed agents. All options are checked before."""
    for task in tasks:
        check(settings, task)
    resolve("builder", BUILDERS, settings.samples.builder)
    reduce = resolve("reducer", {}, settings.reducer) if settings.reducer else None
    credit = settings.credit
    rule = credit.found()
    renderer = make_renderer(settings, log)
    made = make_engine(settings, renderer, scripts(tasks), directory / "journal.jsonl")
    agents = await install(settings, tasks, log)
    async with (
        sandboxes(settings, tasks, log) as sandbox,
        made as engine,
        serve(settings.gateway, renderer, engine, directory) as gateway,
        GatewayClient(gateway.url, gateway.control_token) as client,
    ):
        yield Services(
            gateway=client,
            gateway_url=gateway.url,
            agent=lambda task: agents[task.id],
            sandbox=sandbox,
            grader=make_grader,
            session=settings.session,
            samples=msgspec.to_builtins(settings.samples),
            reduce=reduce,
            credit=rule,
            advantages=partial(advantages, exclude_from_group=credit.exclude_from_group, baseline=credit.baseline),
        )


def check(settings: Settings, task: Task) -> None:
    """Makes what a task chooses: that checks its options, and starts nothing."""
    make_grader(task)
    spec = harness_of(settings, task)
    harness = make_harness(spec)
    if task.follow_ups and not harness.resumes:
        raise TaskError(f"task {task.id}: follow_ups: {_no_resume(spec.name)}")
    sandbox_of(settings, task)


def _no_resume(name: str) -> str:
    able = [other for other in HARNESSES if resolve("harness", HARNESSES, other).resumes]
    return (
        f'the harness "{name}" cannot go on in an earlier conversation; '
        f"choose one that can ({', '.join(able)}, command with a resume_argv), or leave them out"
    )


def cache(settings: Settings) -> Path:
    return Path(settings.cache).expanduser() if settings.cache else default_cache().parent


def model(settings: Settings) -> Path:
    """The model directory. "tiny" is made on first use, once per version of Bridle; weights only for who needs them."""
    if settings.model != "tiny":
        return Path(settings.model)
    directory = cache(settings) / "models" / f"tiny-{__version__}"
    if not (directory / "tokenizer.json").exists():
        make_tokenizer(directory)
    if settings.engine.name != "scripted" and not (directory / "model.safetensors").exists():
        from bridle.engines.tiny_model import make_model

        make_model(directory, Vocabulary.load(directory).size)
    return directory


def make_renderer(settings: Settings, log: Log) -> Renderer:
    """The model's renderer, looked at before anything is served. Raises ConfigError for one that is not faithful."""
    directory = model(settings)
    renderer = load_renderer(directory)
    if settings.renderer.verify != "off":
        report = verify(renderer, directory, short=True)
        for line in warnings(report):
            log(line)
        if not report.ok and settings.renderer.verify == "refuse":
            raise ConfigError(
                f"{directory} is not faithful here: {report.reason()}; bridle verify {directory} shows all of it, "
                "--set renderer.verify=warn serves it all the same"
            )
    return renderer


def make_engine(settings: Settings, renderer: Renderer, script: Script | None, journal: Path) -> Engine:
    """Not entered. `script` is the tasks' own, for when the options name none; a real model follows only one named."""
    name = settings.engine.name
    kind: Any = resolve("engine", ENGINES, name)
    config: Any = decode(settings.engine.options, _config_of(kind), f"engine.options of {name}")
    engine: Engine
    if name == "scripted":
        spoken = script if config.script is None else load(Path(config.script))
        if spoken is None:
            raise ConfigError("the scripted engine needs a script: give a task one, or use --script FILE")
        facts = {"context_length": config.context_length, "score": config.score}
        engine = kind(spoken, renderer.vocabulary, renderer.write, journal, **facts)
    elif name == "transformers":
        spoken = None if config.script is None else load(Path(config.script))
        actor = None if spoken is None else Actor(spoken, renderer.vocabulary, renderer.write)
        engine = kind(model(settings), config.device, threads=config.threads, actor=actor, journal_path=journal)
    else:
        engine = kind() if isinstance(config, NoOptions) else kind(config)
    return engine


class NoOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Of a user's own class without a `Config`."""


def _config_of(kind: Any) -> Any:
    return kind.Config if hasattr(kind, "Config") else NoOptions


def scripts(tasks: Sequence[Task]) -> Script | None:
    """The tasks' scripts as one: a request belongs to the task whose instruction it holds."""
    loaded = [(task, load(Path(task.script))) for task in tasks if task.script]
    if not loaded:
        return None
    expects = {script.expect for _, script in loaded}
    if len(expects) > 1:
        raise TaskError(
            f"the scripts of {', '.join(task.id for task, _ in loaded)} expect different things; run them apart"
        )
    first = loaded[0][1]
    threads = [_only_for(task, thread) for task, script in loaded for thread in script.threads]
    return msgspec.structs.replace(first, threads=tuple(threads))


def _only_for(task: Task, thread: Thread) -> Thread:
    when = thread.when
    if not when.prompt_contains and not when.first_user_contains:
        when = msgspec.structs.replace(when, prompt_contains=task.instruction.strip())
    return msgspec.structs.replace(thread, when=when)


async def install(settings: Settings, tasks: Sequence[Task], log: Log) -> dict[str, Agent]:
    """-> the agent of every task, by the task's id; each kind is installed once."""
    specs = {task.id: harness_of(settings, task) for task in tasks}
    made: dict[bytes, Agent] = {}
    for spec in specs.values():
        key = msgspec.json.encode(spec, order="sorted")
        if key not in made:
            harness = make_harness(spec)
            made[key] = Agent(spec.name, harness, await harness.install(cache(settings) / "harnesses", log))
    return {task: made[msgspec.json.encode(spec, order="sorted")] for task, spec in specs.items()}


def harness_of(settings: Settings, task: Task) -> Spec:
    """The run's, else the task's own. Options of the run without a name are those of whichever agent it is."""
    named = settings.harness.name or (task.harness.name if task.harness else DEFAULT_HARNESS)
    own = task.harness.options if task.harness and task.harness.name == named else {}
    return Spec(named, {**own, **settings.harness.options})


def make_harness(spec: Spec) -> Harness:
    kind: Any = resolve("harness", HARNESSES, spec.name)
    harness: Harness = kind(decode(spec.options, kind.Config, f"harness.options of {spec.name}"))
    return harness


def make_grader(task: Task) -> Grader:
    kind: Any = resolve("grader", GRADERS, task.grader.name)
    grader: Grader = kind(decode(task.grader.options, kind.Config, f"task {task.id}: grader.options"))
    return grader


@asynccontextmanager
async def sandboxes(settings: Settings, tasks: Sequence[Task], log: Log) -> AsyncIterator[MakeSandbox]:
    """Chooses the kinds of sandbox, and removes what dead runs left of theirs."""
    places = Path(settings.data) / "sandboxes"
    for run in sorted(places.glob("*")):
        for reaped in await reap(run):
            log(f"removed sandbox {reaped} of a run that died")
        _remove_empty(run)
    places.mkdir(parents=True, exist_ok=True)
    own = Path(tempfile.mkdtemp(prefix="run-", dir=places))
    kinds = {task.id: sandbox_of(settings, task) for task in tasks}
    for name in sorted({name for name, _ in kinds.values()}):
        log(f"sandbox: {name} ({resolve('sandbox', SANDBOXES, name).available()[1]})")
    try:
        yield lambda task, called, mounts: make_sandbox(*kinds[task.id], own / called, mounts)
    finally:
        _remove_empty(own)


def sandbox_of(settings: Settings, task: Task) -> tuple[str, SandboxConfig]:
    """The run's kind, else the task's own, else the best that works here; the task's limits where it has some."""
    name = settings.sandbox.name or (task.sandbox.name if task.sandbox else default_sandbox()[0])
    resolve("sandbox", SANDBOXES, name)
    if task.sandbox is None or not task.sandbox.options:
        return name, settings.sandbox.limits
    return name, decode(task.sandbox.options, SandboxConfig, f"task {task.id}: sandbox.options")


def make_sandbox(name: str, limits: SandboxConfig, place: Path, mounts: Sequence[Mount]) -> Sandbox:
    sandbox: Sandbox = resolve("sandbox", SANDBOXES, name)(place, limits, mounts)
    return sandbox


def _remove_empty(folder: Path) -> None:
    """What is left in it belongs to a run that lives, or is for the next one to remove."""
    with contextlib.suppress(OSError):
        folder.rmdir()
