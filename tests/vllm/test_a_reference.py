"""The reference against itself, so that what is compared with it can be trusted: pieces encoded jointly are the plain forward pass, wherever
they were encoded; a piece that is turned wrongly, or not at all, is far from it."""
import numpy
import pytest
from reference import Piece, reference
from support.dummy import SHAPES


def draw(*lengths, seed=7):
    random = numpy.random.default_rng(seed)
    return [[int(t) for t in random.integers(3, 259, n)] for n in lengths]


def distance(a, b):
    return float(numpy.abs(a - b).max())


@pytest.mark.parametrize("shape", SHAPES)
def test_jointly_encoded_pieces_are_the_plain_forward_pass(dummy, shape):
    r = reference(dummy(shape))
    header, first, second, question = draw(20, 33, 70, 12)
    plain = r.plain(header + first + second + question)[-len(question):]
    joint = [Piece(header), Piece(first, context=header), Piece(second, context=header + first)]
    assert distance(r.composed(joint, question), plain) < 1e-4
    # Encoded elsewhere in the sequence: distances are the same, so the rows are, once they are turned.
    moved = [Piece(header, begin=900), Piece(first, context=header, begin=301), Piece(second, context=header + first, begin=77)]
    assert distance(r.composed(moved, question), plain) < 1e-4
    # Facts encoded each behind the header alone are an approximation, and not this.
    alone = [Piece(header), Piece(first, context=header), Piece(second, context=header)]
    assert distance(r.composed(alone, question), plain) > 0.05


@pytest.mark.parametrize("shape", SHAPES)
def test_a_wrong_turn_is_seen(dummy, shape):
    r = reference(dummy(shape))
    header, fact, question = draw(20, 60, 12)
    plain = r.plain(header + fact + question)[-len(question):]
    right = r.turn
    r.turn = lambda keys, by, layer: right(keys, by + 1 if by else 0, layer)
    assert distance(r.composed([Piece(header), Piece(fact, context=header, begin=50)], question), plain) > 0.05
    r.turn = lambda keys, by, layer: keys
    assert distance(r.composed([Piece(header), Piece(fact, context=header, begin=50)], question), plain) > 0.05
