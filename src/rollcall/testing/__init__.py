"""Distributed tests under pytest: `@pytest.mark.ranks(4)`.

plugin     pytest's side: runs a marked test on ranks, and reports how it ended
rank_side  a rank's side: runs the body of the test
"""
