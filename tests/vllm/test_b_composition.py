"""Composition: facts that were captured each behind a context of its own, at positions of their own, and are injected one behind another behind
the header, give the log-probabilities that the independent reference (reference.py: transformers in fp32, none of our code) gives for the same
composition, at the prompt's end and at every token that is generated on it. One fact in the wrong place, in another's, or from behind another
context gives others."""
import numpy
import pytest
from memory import ask, engine, part, rows_of, turned
from reference import Piece, reference

CLOSE, FAR = 1e-4, 1e-2
CLOSE_REAL = 5e-4  # thirty layers in fp32: 1.6e-4 on an AMD EPYC with AVX-512, whose sums torch orders otherwise
PLAIN = 5e-4  # vLLM's own prefill against transformers', where nothing of ours is: 2e-4 over the 49,152 tokens of the default model
# Gemma's window is 64: its sliding layers see the last facts only, and those cut in two. YaRN has a factor on its keys, GLM pairs side by side and
# half of a head rotated. DeepSeek's rows are latents, of which only the last part, the key that all heads share, is turned.
SHAPES = ["smollm2", "llama", "qwen3", "gemma3", "yarn", "glm4", "deepseek2", "deepseek3"]


class Story:
    """A header; a fact captured behind it; two as long as each other, behind the header and more or less of a conversation; a page of three facts,
    captured as one. But for the header none is put where it was captured."""

    def __init__(self, gateway, vllm, seed, low, high, steps):
        self.steps = steps
        random = numpy.random.default_rng(seed)

        def draw(n):
            return [int(t) for t in random.integers(low, high, n)]
        self.gateway, self.vllm = gateway, vllm
        self.header, self.turns, self.question = draw(23), draw(57), draw(11)
        self.alone, self.told, self.twin, self.page = draw(31), draw(40), draw(40), [draw(19), draw(36), draw(28)]
        self.names = {
            "header": self.capture([], self.header),
            "alone": self.capture(self.header, self.alone),
            "told": self.capture(self.header + self.turns, self.told),
            "told elsewhere": self.capture(self.header, self.told),
            "twin": self.capture(self.header + self.turns[:7], self.twin),
            "page": self.capture(self.header, sum(self.page, [])),
        }

    def capture(self, context, span):
        name, _ = self.gateway.capture(self.vllm, context + span, len(context), len(span))
        return name

    def pieces(self):
        """What is injected, in order: (name, first token of the segment, the reference's piece). Of the page its last fact and then its first
        two, so that it is left and come back to; of a fact a part too."""
        first, second, third = self.page
        return [
            ("header", 0, Piece(self.header)),
            ("page", len(first + second), Piece(third, context=self.header + first + second)),
            ("told", 0, Piece(self.told, context=self.header + self.turns)),
            ("page", 0, Piece(first + second, context=self.header)),
            ("alone", 5, Piece(self.alone[5:], context=self.header + self.alone[:5])),
            ("twin", 0, Piece(self.twin, context=self.header + self.turns[:7])),
        ]

    def prompt(self):
        return sum((p.tokens for _, _, p in self.pieces()), []) + self.question

    def ask(self, names=None):
        """The engine's answer on injected rows; names: other segments than the right ones."""
        names, parts, at = dict(self.names, **(names or {})), [], 0
        for name, begin, piece in self.pieces():
            parts.append(part(names[name], begin, len(piece.tokens), at))
            at += len(piece.tokens)
        tokens = self.prompt()
        answer = ask(self.vllm, tokens, self.gateway.inject(tokens, parts), self.steps)
        assert answer.said == {"ok": True, "injected": at, "local": 0, "reason": "", "why": ""}, answer.said
        return answer

    def expected(self, r, answer, change=None):
        """[step][vocabulary] by the reference, on the tokens that the engine chose; change(pieces): another composition."""
        pieces = [piece for _, _, piece in self.pieces()]
        if change:
            change(pieces)
        return r.composed(pieces, self.question + answer.tokens[:-1])[len(self.question) - 1:]


def distance(answer, expected):
    assert len(answer.rows) == len(expected) > 1
    return max(float(numpy.abs(a - b).max()) for a, b in zip(answer.rows, expected, strict=True))


def one_off(pieces):
    """The second fact's keys stand one position further than its tokens; what follows stays."""
    pieces[3].at = sum(len(p.tokens) for p in pieces[:3])
    pieces[2].at = sum(len(p.tokens) for p in pieces[:2]) + 1


def swapped(pieces):
    pieces[2], pieces[5] = pieces[5], pieces[2]


def another_context(pieces):
    pieces[2].context = pieces[0].tokens


@pytest.mark.parametrize("shape", SHAPES)
def test_facts_behind_one_another(request, dummy, folder, shape):
    real = shape == "smollm2"
    model = request.getfixturevalue("smollm2") if real else dummy(shape)
    r = reference(model)
    with engine(folder, model) as (vllm, gateway):
        assert gateway.said["can_inject"] and gateway.said["dtype"] == "f32", gateway.said["why_not"]
        story = Story(gateway, vllm, 31, *((100, 40000, 2) if real else (3, 259, 5)))
        answer = story.ask()
        right = story.expected(r, answer)
        assert right.std() > 0.5  # a flat distribution would equal any other
        assert distance(answer, right) <= (CLOSE_REAL if real else CLOSE)
        # It is a composition: the plain prefill of the same prompt, by either, is another matter, and there the two agree too.
        tokens = story.prompt()
        plain = ask(vllm, tokens, None, story.steps)
        assert distance(plain, r.plain(tokens + plain.tokens[:-1])[len(tokens) - 1:]) <= PLAIN
        assert float(numpy.abs(plain.rows[0] - answer.rows[0]).max()) > FAR
        # The reference with one thing wrong is not what the engine gave.
        for change in (one_off,) if real else (one_off, swapped, another_context):
            assert distance(answer, story.expected(r, answer, change)) > FAR, change.__name__
        # And the engine with one thing wrong is not what the reference gives.
        for what, name in other_segments(story, vllm).items():
            off = float(numpy.abs(story.ask({"told": name}).rows[0] - right[0]).max())
            assert off <= (CLOSE_REAL if real else CLOSE) if what == "the same again" else off > FAR, (what, off)


def other_segments(story, vllm):
    """Segments with the tokens of the fact that was told: its own rows once more, and rows that it should not have."""
    import torch
    gateway, side = story.gateway, vllm.scheduler.connector.scheduler_side
    planes = side.shape.planes()

    def with_rows(rows):
        spool = gateway.home / "vllm/spool/wrong"
        tensors = [torch.from_numpy(numpy.ascontiguousarray(r)) for r in rows]
        side.model.write(spool, story.told, 0, (0, len(planes)), (0, planes[0][0].total_heads), 0, tensors)
        return gateway.keep(spool)
    right, others = (rows_of(gateway, gateway.path(story.names[n]), side.shape) for n in ("told", "twin"))
    by_one = [r if is_v else turned(layer, r, numpy.ones(len(r))) for (layer, is_v), r in zip(planes, right, strict=True)]
    return {"the same again": with_rows(right), "another context": story.names["told elsewhere"], "another fact's rows": with_rows(others),
            "one position off": with_rows(by_one)}
