"""The experiments, one file each, in folders by theme."""
