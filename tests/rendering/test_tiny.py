from __future__ import annotations

from pathlib import Path

from bridle.rendering.template import TemplateRenderer
from bridle.rendering.tiny import PLAIN, SPECIAL, make_tokenizer
from bridle.tokens import Vocabulary


def test_it_has_the_size_and_the_control_tokens_asked_for(tiny: TemplateRenderer, tmp_path: Path) -> None:
    assert tiny.vocabulary.size == 2048
    assert set(tiny.vocabulary.controls) == {*SPECIAL, *PLAIN}
    assert Vocabulary.load(make_tokenizer(tmp_path / "new" / "small", 600)).size == 600


def test_it_is_the_same_each_time_and_leaves_nothing_else_behind(tmp_path: Path) -> None:
    one, two = make_tokenizer(tmp_path / "one"), make_tokenizer(tmp_path / "two")
    names = ["generation_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(path.name for path in one.iterdir()) == names
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_whole_documents_teach_it_merges_across_lines(tiny: TemplateRenderer) -> None:
    vocabulary = tiny.vocabulary
    assert len(vocabulary.encode("\n\n")) == 1
    assert [vocabulary.decode([id]) for id in vocabulary.encode("user\n\nThe").tolist()][:2] == ["user", "\n\n"]


def test_it_learns_the_text_of_the_project(tiny: TemplateRenderer) -> None:
    text = "def encode(self, text: str) -> Ids:\n    return vocabulary.encode(text)\n"
    assert len(tiny.vocabulary.encode(text)) < len(text) / 2
