"""The page and the picture, as files; and once in a real browser."""

from __future__ import annotations

import base64
import gzip
import itertools
import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import numpy as np
import pytest

from bridle.dashboard.dumps import find
from bridle.dashboard.figure import AXES
from bridle.dashboard.page import groups, page, spelled
from bridle.dashboard.picture import has_fonts, png, svg
from bridle.dashboard.read import View, read
from bridle.testing.chromium import PROGRAM, tab
from bridle.tokens import Vocabulary

written = pytest.mark.skipif(not has_fonts(), reason="there are no fonts here (apt-get install fonts-dejavu-core)")
BRIDLE = str(Path(sys.executable).with_name("bridle"))


def viewed(run: Path) -> View:
    return read(find([str(run)]))


def unpacked(html: str, name: str) -> bytes:
    found = re.search(rf'id="{name}">([^<]*)<', html)
    assert found is not None
    return gzip.decompress(base64.b64decode(found[1]))


def test_hostile_text_is_nowhere_in_the_file_as_markup(run: Path, hostile: str) -> None:
    html = page(viewed(run), hostile)
    assert hostile not in html
    assert html.count("<script>") == 1
    assert "onerror" not in html.replace("onerror=&quot;", "")


def test_the_page_loads_nothing_and_is_small(run: Path) -> None:
    html = page(viewed(run), "x")
    assert not re.search(r"""(src|href)=["'](?!x)|https?://(?!www\.w3\.org/2000/svg)|@import|url\((?!#)""", html)
    assert "default-src 'none'" in html
    assert len(html) < 100_000


def test_the_arrays_come_out_as_they_went_in(run: Path) -> None:
    rollout = viewed(run).rollouts[0]
    packed = unpacked(page(viewed(run), "x"), "rollout-0")
    length = struct.unpack_from("<I", packed)[0]
    document = msgspec.json.decode(packed[4 : 4 + length])
    assert length % 4 == 0
    assert [turn["id"] for turn in document["turns"]] == [turn.id for turn in rollout.turns]
    at = 4 + length
    assert np.frombuffer(packed, "<i4", document["ids"], at).tolist() == rollout.tokens.ids.tolist()
    at += 4 * document["ids"]
    np.testing.assert_array_equal(np.frombuffer(packed, "<f4", document["sampled"], at), rollout.tokens.logprobs)
    assert packed[at + 4 * document["sampled"] :] == rollout.tokens.states.tobytes()


def test_tokens_are_spelled_as_text_as_control_tokens_or_as_bytes(run: Path, vocabulary: Vocabulary) -> None:
    (first, *_) = viewed(run).rollouts
    found = spelled(vocabulary, [first])
    assert found[str(vocabulary.controls["<|im_end|>"])] == ("<|im_end|>", 1)
    parts = [found[str(id)] for id in vocabulary.encode("日")]
    assert bytes.fromhex("".join(text for text, kind in parts if kind == 2)).decode() == "日"
    assert all(bytes.fromhex(text) for text, kind in found.values() if kind == 2)


def test_groups_have_the_baseline_of_the_rewards_that_count(run: Path) -> None:
    (group,) = groups(viewed(run).rollouts)
    assert (group["rollouts"], group["rewards"], group["mean"]) == (2, [1.0, 0.0], 0.5)
    assert group["deviation"] == pytest.approx(0.7071, abs=1e-4)


@pytest.mark.parametrize("axis", AXES)
def test_the_picture_is_well_formed_and_has_every_turn_and_mark(run: Path, axis: Any, hostile: str) -> None:
    view = viewed(run)
    root = ElementTree.fromstring(svg(view.rollouts, axis))
    assert len([node for node in root.iter() if node.get("class") == "turn"]) == 12
    drawn = svg(view.rollouts[:1], axis)
    assert drawn.count('hatch"') >= 2
    assert hostile not in drawn


def test_bars_of_turns_do_not_overlap_and_stay_inside(run: Path) -> None:
    root = ElementTree.fromstring(svg(viewed(run).rollouts[:1], "tokens"))
    boxes = [
        (float(box.attrib["x"]), float(box.attrib["x"]) + float(box.attrib["width"]))
        for turn in root.iter()
        if turn.get("class") == "turn"
        for box in turn
        if box.tag.endswith("rect") and box.get("class") != "hatch"
    ]
    assert all(before[1] <= after[0] + 0.15 for before, after in itertools.pairwise(boxes))
    assert boxes[-1][1] <= 1106.1


@written
def test_the_command_writes_page_and_picture_for_a_quoted_glob(run: Path) -> None:
    words = [BRIDLE, "view", "*", "--out", "out/page.html", "--png", "out/picture.png"]
    done = subprocess.run(words, cwd=run.parent, capture_output=True, text=True, check=False, timeout=60)
    assert (done.stderr, done.stdout) == ("", "2 rollouts, 12 turns: out/page.html, out/picture.png\n")
    assert (run.parent / "out/picture.png").read_bytes().startswith(b"\x89PNG")
    assert "<title>Bridle: *</title>" in (run.parent / "out/page.html").read_text()


@written
def test_the_picture_is_a_png(run: Path) -> None:
    assert png(svg(viewed(run).rollouts, "time")).startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="Chromium is not installed (apt-get install chromium)")
async def test_a_browser_shows_the_page_a_turn_and_a_token(run: Path, tmp_path: Path, hostile: str) -> None:
    (tmp_path / "page.html").write_text(page(viewed(run), "Bridle"))
    async with tab(tmp_path / "page.html", tmp_path / "profile") as browser:
        await browser.until("document.documentElement?.dataset.ready")
        click = "document.querySelector('.turn[data-turn=\"2\"]').dispatchEvent(new MouseEvent('click'))"
        await browser.run(click)
        told = await browser.run("document.getElementById('token').textContent")
        assert "turn 2, sampled number 0 · trains · logprob 0.0000 (p 1.00) · policy version 7" in told
        await browser.run("document.querySelector('.turn[data-turn=\"1\"]').dispatchEvent(new MouseEvent('click'))")
        assert "does not train: undelivered" in await browser.run("document.getElementById('token').textContent")
        assert hostile in await browser.run("document.getElementById('tokens').textContent.replaceAll('·', ' ')")
        assert hostile in await browser.run("document.getElementById('notice').textContent")
        assert await browser.run("document.title") == "Bridle"
        assert await browser.run("document.querySelectorAll('img, script:not([id])').length") == 1
    loaded = [event["params"]["request"]["url"] for event in browser.events if "requestWillBeSent" in event["method"]]
    assert [url for url in loaded if not url.startswith(("file:", "data:"))] == []
    assert [event for event in browser.events if event["method"] in ("Runtime.exceptionThrown", "Log.entryAdded")] == []
