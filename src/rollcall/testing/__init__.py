"""Distributed tests under pytest: `@pytest.mark.ranks(4)`."""
